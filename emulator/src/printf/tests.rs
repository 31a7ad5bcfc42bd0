//! Against what the C library prints.

use super::*;

/// An argument as a kernel passes it.
#[derive(Debug, Clone, Copy)]
enum Arg {
    Int(i32),
    Long(i64),
    Double(f64),
}
use Arg::{Double, Int, Long};

/// Packs arguments as nvcc does.
fn pack(arguments: &[Arg]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for argument in arguments {
        let value = match argument {
            Int(value) => value.to_le_bytes().to_vec(),
            Long(value) => value.to_le_bytes().to_vec(),
            Double(value) => value.to_le_bytes().to_vec(),
        };
        bytes.resize(bytes.len().next_multiple_of(value.len()), 0xee);
        bytes.extend(value);
    }
    bytes
}

fn printed(text: &str, arguments: &[Arg]) -> String {
    let string = |address| (address == 0x5000).then(|| b"hello".to_vec());
    String::from_utf8(format(text.as_bytes(), &pack(arguments), &string)).unwrap()
}

/// Chosen from 2,612 cases that agree with glibc's `snprintf`.
#[test]
fn conversions_print_what_the_c_library_prints() {
    let cases: &[(&str, &[Arg], &str)] = &[
        ("[%*.*f|%d]", &[Int(0), Int(-1), Double(-0.0), Int(7)], "[-0.000000|7]"),
        (
            "[%*.*f|%d]",
            &[Int(0), Int(-1), Double(1e100), Int(7)],
            "[10000000000000000159028911097599180468360808563945281389781327557747838772170381060813469985856815104.000000|7]",
        ),
        ("[%*.*f|%d]", &[Int(-5), Int(0), Double(-0.0), Int(7)], "[-0   |7]"),
        ("[%*.*f|%d]", &[Int(12), Int(-1), Double(1e15), Int(7)], "[1000000000000000.000000|7]"),
        ("%8A", &[Double(1e-310)], "0X0.012688B70E62BP-1022"),
        ("%.1A", &[Double(1e100)], "0X1.2P+332"),
        ("%20.17A", &[Double(999999.5)], "0X1.E847F000000000000P+19"),
        ("%+01.10E", &[Double(1e15)], "+1.0000000000E+15"),
        ("%#20.10E", &[Double(0.1)], "    1.0000000000E-01"),
        ("% 20F", &[Double(0.1)], "            0.100000"),
        ("%F", &[Double(f64::INFINITY)], "INF"),
        ("%0.0G", &[Double(1e15)], "1E+15"),
        ("%#020.1G", &[Double(0.1)], "000000000000000000.1"),
        ("%+8.1zX", &[Long(9223372036854775807)], "7FFFFFFFFFFFFFFF"),
        ("%-#1.3hX", &[Int(1)], "0X001"),
        ("%+20.10a", &[Double(f64::INFINITY)], "                +inf"),
        ("%-+1.3a", &[Double(-1.5)], "-0x1.800p+0"),
        ("%#1.10a", &[Double(123456789.0)], "0x1.d6f3454000p+26"),
        ("%+8a", &[Double(999999.5)], "+0x1.e847fp+19"),
        ("%1a", &[Double(1e15)], "0x1.c6bf52634p+49"),
        ("%020.a", &[Double(1e-5)], "0x00000000000001p-17"),
        ("a%%b", &[], "a%b"),
        ("%20c", &[Int(65)], "                   A"),
        ("%-20c", &[Int(122)], "z                   "),
        ("%-8jd", &[Long(1)], "1       "),
        ("% 1.17hd", &[Int(-42)], "-00000000000000042"),
        ("%01.1zd", &[Long(-1)], "-1"),
        ("%+20.1zd", &[Long(9223372036854775807)], "+9223372036854775807"),
        ("%.3hd", &[Int(2147483647)], "-001"),
        ("%+.hd", &[Int(i32::MIN)], "+"),
        ("%.10e", &[Double(0.0)], "0.0000000000e+00"),
        ("%-1.0e", &[Double(-0.0)], "-0e+00"),
        ("% 0.10e", &[Double(123456789.0)], " 1.2345678900e+08"),
        ("%#20e", &[Double(1e-310)], "       1.000000e-310"),
        ("% 20f", &[Double(1e-310)], "            0.000000"),
        ("%08.17f", &[Double(-f64::INFINITY)], "    -inf"),
        ("%+020.0f", &[Double(1e15)], "+0001000000000000000"),
        ("% .1f", &[Double(1e15)], " 1000000000000000.0"),
        ("%08.f", &[Double(1e-5)], "00000000"),
        ("%+1g", &[Double(1e100)], "+1e+100"),
        ("%+1.3g", &[Double(1.0)], "+1"),
        ("%01.g", &[Double(1e-5)], "1e-05"),
        ("% 01.10g", &[Double(1e-310)], " 1e-310"),
        ("% 20.0g", &[Double(-0.0)], "                  -0"),
        ("%#01.1g", &[Double(123456789.0)], "1.e+08"),
        ("%-+1.g", &[Double(4.9e-324)], "+5e-324"),
        ("%20.17g", &[Double(1e-5)], "1.0000000000000001e-05"),
        ("%-.1zi", &[Long(i64::MIN)], "-9223372036854775808"),
        ("%-8.li", &[Long(-1)], "-1      "),
        ("%#020.zo", &[Long(0)], "                   0"),
        ("%01.17to", &[Long(-1)], "1777777777777777777777"),
        ("%-8.10ho", &[Int(i32::MIN)], "0000000000"),
        ("%+20hho", &[Int(1)], "                   1"),
        ("%#0.3o", &[Int(42)], "052"),
        ("%-20p", &[Long(0)], "(nil)               "),
        ("%-p", &[Long(140733498807928)], "0x7fff12345678"),
        ("%-8.17s", &[Long(0x5000)], "hello   "),
        ("%1.10s", &[Long(0x5000)], "hello"),
        ("%8.s", &[Long(0x5000)], "        "),
        ("%.1s", &[Long(0x5000)], "h"),
        ("% 8.10ju", &[Long(-1)], "18446744073709551615"),
        ("%#08zu", &[Long(i64::MIN)], "9223372036854775808"),
        ("%8.3x", &[Int(-1)], "ffffffff"),
        ("% 20.0hhx", &[Int(i32::MIN)], "                    "),
        ("% 01.1llx", &[Long(1)], "1"),
        ("%1.10hhx", &[Int(1)], "0000000001"),
        ("%+1.x", &[Int(0)], " "),
    ];
    for &(text, arguments, expected) in cases {
        assert_eq!(printed(text, arguments), expected, "{text} {arguments:?}");
    }
}

#[test]
fn arguments_are_aligned() {
    let arguments = [Int(1), Long(2), Int(3), Int(4), Double(0.5)];
    assert_eq!(pack(&arguments).len(), 32);
    assert_eq!(printed("%d %ld %d %d %g\n", &arguments), "1 2 3 4 0.5\n");
    assert_eq!(printed("%s|%-7s|%.2s", &[Long(0x5000); 3]), "hello|hello  |he");
}

#[test]
fn what_cannot_be_converted_stands_as_it_is() {
    for text in ["100%", "%", "%-", "%y", "%5", "%llld", "%n", ""] {
        assert_eq!(printed(text, &[Int(7)]), text);
    }
    assert_eq!(printed("%y %d", &[Int(7)]), "%y 7");
    assert_eq!(printed("%s", &[Long(0x6000)]), "(null)", "an address without text");
}

#[test]
fn missing_arguments_read_as_zero() {
    assert_eq!(printed("%d %d %g", &[Int(7)]), "7 0 0");
    assert_eq!(printed("%s", &[]), "(null)");
}

#[test]
fn huge_fields_are_cut() {
    assert_eq!(printed("%999999999999d", &[Int(1)]).len(), MOST_WIDTH);
    assert_eq!(printed("%*d", &[Int(i32::MIN), Int(1)]).len(), MOST_WIDTH);
    assert_eq!(printed("%.2147483647f", &[Double(1.0)]).len(), MOST_WIDTH + 2);
}

#[test]
fn bytes_that_are_no_text_pass_through() {
    assert_eq!(format(b"\xff%c\x80", &pack(&[Int(0xfe)]), &|_| None), b"\xff\xfe\x80");
}

//! Memory instructions against plain Rust: every atomic with every type in both spaces, loads and stores of every width,
//! `ldmatrix` and `stmatrix` with index-valued matrices, `cp.async` of every size.

#[path = "support/gpu.rs"]
#[allow(dead_code)]
mod gpu;

use cuda_emulator::fault::Fault;
use gpu::{Arg, Gpu, shape};
use half::{bf16, f16};

fn run(ptx: &str, threads: usize, buffers: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Fault> {
    let mut gpu = Gpu::new(ptx, 0)?;
    let addresses: Vec<u64> = buffers.iter().map(|bytes| gpu.upload(bytes)).collect::<Result<_, _>>()?;
    let args: Vec<Arg> = addresses.iter().map(|&address| Arg::Pointer(address)).collect();
    gpu.launch("k", shape(1, threads), &args)?;
    addresses.iter().zip(buffers).map(|(&address, bytes)| gpu.download(address, bytes.len())).collect()
}

/// A kernel with pointers `%rd1`, `%rd2`, … and the thread's index in `%r1`.
fn kernel(pointers: usize, body: &str) -> String {
    let params: Vec<String> = (0..pointers).map(|i| format!(".param .u64 p{i}")).collect();
    let loads: String = (0..pointers).map(|i| format!("    ld.param.u64 %rd{}, [p{i}];\n", i + 1)).collect();
    format!(
        ".version 8.6
.target sm_90
.address_size 64
.visible .entry k({})
{{
    .reg .pred %p<9>;
    .reg .b16 %rs<40>;
    .reg .b32 %r<60>;
    .reg .f32 %f<9>;
    .reg .f64 %fd<9>;
    .reg .b64 %rd<60>;
    .shared .align 16 .b8 smem[8192];
{loads}    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
{body}
    ret;
}}
",
        params.join(", ")
    )
}

fn bits(values: &[u64], bytes: usize) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()[..bytes].to_vec()).collect()
}

/// What an atomic leaves in memory, written without the emulator's code.
fn expected(op: &str, ty: &str, old: u64, b: u64, c: u64) -> u64 {
    let bytes = bytes_of(ty);
    let mask = if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
    let signed = |x: u64| (x as i64) << (64 - 8 * bytes) >> (64 - 8 * bytes);
    let pair = |f: &dyn Fn(u16, u16) -> u16| {
        f(old as u16, b as u16) as u64 | (f((old >> 16) as u16, (b >> 16) as u16) as u64) << 16
    };
    let half = |x: u16, y: u16| f16::from_f64(f16::from_bits(x).to_f64() + f16::from_bits(y).to_f64()).to_bits();
    let brain = |x: u16, y: u16| bf16::from_f64(bf16::from_bits(x).to_f64() + bf16::from_bits(y).to_f64()).to_bits();
    let result = match (op, ty) {
        ("add", "f32") => (f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits() as u64,
        ("add", "f64") => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        ("add", "f16x2") => pair(&half),
        ("add", "bf16x2") => pair(&brain),
        ("add", "f16") => half(old as u16, b as u16) as u64,
        ("add", "bf16") => brain(old as u16, b as u16) as u64,
        ("add", _) => (old as u128 + b as u128) as u64,
        ("min", "s32" | "s64") => signed(old).min(signed(b)) as u64,
        ("max", "s32" | "s64") => signed(old).max(signed(b)) as u64,
        ("min", _) => old.min(b),
        ("max", _) => old.max(b),
        ("and", _) => old & b,
        ("or", _) => old | b,
        ("xor", _) => old ^ b,
        ("exch", _) => b,
        ("inc", _) => (old < b) as u64 * (old + 1),
        ("dec", _) => match old {
            0 => b,
            _ if old > b => b,
            _ => old - 1,
        },
        ("cas", _) => [old, c][(old == b) as usize],
        _ => unreachable!("{op}.{ty}"),
    };
    result & mask
}

fn bytes_of(ty: &str) -> usize {
    match ty {
        "b16" | "f16" | "bf16" => 2,
        "b64" | "u64" | "s64" | "f64" => 8,
        _ => 4,
    }
}

/// Pairs (what is there, what comes): edges of the type.
fn edges(ty: &str) -> Vec<(u64, u64)> {
    let values: Vec<u64> = match ty {
        "f32" => {
            [0.0f32, -0.0, 1.5, -3.25e38, 3.25e38, 1e-45, f32::INFINITY].iter().map(|x| x.to_bits() as u64).collect()
        }
        "f64" => [0.0f64, -0.0, 1.5, -1.7e308, 1.7e308, 5e-324, f64::INFINITY].iter().map(|x| x.to_bits()).collect(),
        "f16x2" | "bf16x2" => vec![0, 0x3c00_8001, 0x7bff_7bff, 0x0001_c000, 0x4049_3f80],
        "f16" | "bf16" => vec![0, 0x3c00, 0x7bff, 0x8001, 0x4049],
        "b16" => vec![0, 1, 0x7fff, 0x8000, 0xffff],
        "b64" | "u64" | "s64" => vec![0, 1, i64::MAX as u64, i64::MIN as u64, u64::MAX, 0x1234_5678_9abc_def0],
        _ => vec![0, 1, 7, i32::MAX as u64, 0x8000_0000, 0xffff_ffff],
    };
    values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).collect()
}

#[test]
fn every_atomic_with_every_type() {
    let forms: &[(&str, &[&str])] = &[
        ("add", &["u32", "s32", "u64", "f32", "f64", "noftz.f16x2", "noftz.bf16x2", "noftz.f16", "noftz.bf16"]),
        ("min", &["u32", "s32", "u64", "s64"]),
        ("max", &["u32", "s32", "u64", "s64"]),
        ("and", &["b32", "b64"]),
        ("or", &["b32", "b64"]),
        ("xor", &["b32", "b64"]),
        ("exch", &["b32", "b64"]),
        ("inc", &["u32"]),
        ("dec", &["u32"]),
        ("cas", &["b16", "b32", "b64"]),
    ];
    let mut tried = 0;
    for &(op, types) in forms {
        for &written in types {
            let ty = written.trim_start_matches("noftz.");
            let bytes = bytes_of(ty);
            let (register, bits_type) =
                [("%rs", "b16"), ("%r", "b32"), ("%rd", "b64")][bytes.trailing_zeros() as usize - 1];
            let pairs = edges(ty);
            let c = 0x1122_3344_5566_7788u64 & if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
            for space in ["global", "shared", ""] {
                let third = if op == "cas" { format!(", {register}33") } else { String::new() };
                let dot = if space.is_empty() { String::new() } else { format!(".{space}") };
                let (target, prepare, finish) = match space {
                    "shared" => (
                        "[%r4]",
                        format!("    st.shared.{bits_type} [%r4], {register}30;\n"),
                        format!(
                            "    ld.shared.{bits_type} {register}34, [%r4];\n    st.global.{bits_type} [%rd20], {register}34;\n"
                        ),
                    ),
                    _ => ("[%rd20]", String::new(), String::new()),
                };
                // Each thread works on its own element: memory, operand, returned value.
                let body = format!(
                    "    mul.wide.u32 %rd10, %r1, {bytes};
    add.s64 %rd20, %rd1, %rd10;
    add.s64 %rd21, %rd2, %rd10;
    add.s64 %rd22, %rd3, %rd10;
    cvt.u32.u64 %r3, %rd10;
    add.u32 %r4, %r2, %r3;
    ld.global.{bits_type} {register}30, [%rd20];
    ld.global.{bits_type} {register}31, [%rd21];
    ld.global.{bits_type} {register}33, [%rd4];
{prepare}    atom{dot}.{op}.{written} {register}32, {target}, {register}31{third};
    st.global.{bits_type} [%rd22], {register}32;
{finish}"
                );
                let (old, operand): (Vec<u64>, Vec<u64>) = pairs.iter().copied().unzip();
                let buffers =
                    [bits(&old, bytes), bits(&operand, bytes), vec![0; bytes * pairs.len()], bits(&[c], bytes)];
                let form = format!("atom{dot}.{op}.{written}");
                let out =
                    run(&kernel(4, &body), pairs.len(), &buffers).unwrap_or_else(|fault| panic!("{form}: {fault}"));
                assert_eq!(out[2], bits(&old, bytes), "{form} returns what was there");
                for (i, &(a, b)) in pairs.iter().enumerate() {
                    let found = &out[0][i * bytes..][..bytes];
                    let wanted = bits(&[expected(op, ty, a, b, c)], bytes);
                    let nan = ty == "f32" && f32::from_bits(expected(op, ty, a, b, c) as u32).is_nan();
                    assert!(
                        found == wanted || nan,
                        "{form} of {a:#x} and {b:#x}: found {found:x?}, expected {wanted:x?}"
                    );
                }
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 3 * 30, "every form in three spaces");
}

#[test]
fn reductions_add_up_without_a_result() {
    let body = "    red.global.add.u32 [%rd1], %r1;
    red.global.max.s32 [%rd1+4], %r1;
    red.global.or.b32 [%rd1+8], %r1;
    mov.f32 %f1, 0f3F000000;
    red.global.add.f32 [%rd1+12], %f1;";
    let out = run(&kernel(1, body), 64, &[vec![0; 16]]).unwrap();
    assert_eq!(out[0], [2016u32, 63, 63, 32f32.to_bits()].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
}

#[test]
fn loads_and_stores_of_every_width_and_vector() {
    let source: Vec<u8> = (0..32 * 16).map(|i| (i * 37 % 251) as u8).collect();
    for (form, register, elements, bytes) in [
        ("u8", "%rs", 1, 1),
        ("v2.u8", "%rs", 2, 1),
        ("v4.u8", "%rs", 4, 1),
        ("u16", "%rs", 1, 2),
        ("v2.u16", "%rs", 2, 2),
        ("v4.b16", "%rs", 4, 2),
        ("u32", "%r", 1, 4),
        ("v2.b32", "%r", 2, 4),
        ("v4.u32", "%r", 4, 4),
        ("b64", "%rd", 1, 8),
        ("v2.u64", "%rd", 2, 8),
    ] {
        let names: Vec<String> = (0..elements).map(|i| format!("{register}{}", 30 + i)).collect();
        let vector = if elements == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) };
        let width = elements * bytes;
        // Global to shared to global, all by the same form.
        let body = format!(
            "    mul.wide.u32 %rd10, %r1, {width};
    add.s64 %rd20, %rd1, %rd10;
    add.s64 %rd21, %rd2, %rd10;
    cvt.u32.u64 %r3, %rd10;
    add.u32 %r4, %r2, %r3;
    ld.global.{form} {vector}, [%rd20];
    st.shared.{form} [%r4], {vector};
    ld.shared.{form} {vector}, [%r4];
    st.global.{form} [%rd21], {vector};"
        );
        let out = run(&kernel(2, &body), 32, &[source.clone(), vec![0; source.len()]]).unwrap();
        assert_eq!(out[1][..32 * width], source[..32 * width], "{form}");
        assert!(out[1][32 * width..].iter().all(|&byte| byte == 0), "{form} writes beyond");
    }
}

/// Rows of 16 bytes at 48-byte distances; element (m, r, c) of matrix m is 100 m + 10 r + c.
fn matrices() -> Vec<u8> {
    let mut bytes = vec![0xee; 32 * 48];
    for row in 0..32 {
        for column in 0..8 {
            let value = (100 * (row / 8) + 10 * (row % 8) + column) as u16;
            bytes[row * 48 + 2 * column..][..2].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn ldmatrix_and_stmatrix_place_every_element() {
    for count in [1, 2, 4] {
        for transposed in [false, true] {
            let trans = if transposed { ".trans" } else { "" };
            let names: Vec<String> = (0..count).map(|i| format!("%r{}", 40 + i)).collect();
            let list = names.join(", ");
            let stores: String =
                (0..count).map(|m| format!("    st.global.u32 [%rd21+{}], %r{};\n", 128 * m, 40 + m)).collect();
            // Every lane copies a row to shared memory, loads fragments, writes them out, and stores them as rows again.
            let body = format!(
                "    mul.lo.u32 %r3, %r1, 48;
    add.u32 %r4, %r2, %r3;
    cvt.u64.u32 %rd10, %r3;
    add.s64 %rd20, %rd1, %rd10;
    ld.global.v4.u32 {{%r30, %r31, %r32, %r33}}, [%rd20];
    st.shared.v4.u32 [%r4], {{%r30, %r31, %r32, %r33}};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{list}}}, [%r4];
    bar.sync 0;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r4], {{{list}}};
    bar.sync 0;
    ld.shared.v4.u32 {{%r30, %r31, %r32, %r33}}, [%r4];
    st.global.v4.u32 [%rd20], {{%r30, %r31, %r32, %r33}};
    mul.wide.u32 %rd11, %r1, 4;
    add.s64 %rd21, %rd2, %rd11;
{stores}"
            );
            let out = run(&kernel(2, &body), 32, &[matrices(), vec![0; 512]]).unwrap();
            assert_eq!(out[0], matrices(), "x{count}{trans}: stmatrix undoes ldmatrix");
            for m in 0..count {
                for lane in 0..32 {
                    let word = u32::from_le_bytes(out[1][128 * m + 4 * lane..][..4].try_into().unwrap());
                    let (i, j) = (lane / 4, lane % 4 * 2);
                    let element =
                        |i: usize, j: usize| (100 * m + if transposed { 10 * j + i } else { 10 * i + j }) as u32;
                    let wanted = element(i, j) | element(i, j + 1) << 16;
                    assert_eq!(word, wanted, "x{count}{trans}, matrix {m}, lane {lane}");
                }
            }
        }
    }
}

#[test]
fn cp_async_of_every_size_arrives_at_the_wait() {
    let source: Vec<u8> = (1..=128u32 * 4).map(|i| (i % 255) as u8).collect();
    for (form, bytes) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)] {
        for taken in 0..=bytes {
            let body = format!(
                "    mul.lo.u32 %r3, %r1, {bytes};
    add.u32 %r4, %r2, %r3;
    cvt.u64.u32 %rd10, %r3;
    add.s64 %rd20, %rd1, %rd10;
    add.s64 %rd21, %rd2, %rd10;
    mov.u32 %r5, {taken};
    cp.async.{form}.shared.global [%r4], [%rd20], {bytes}, %r5;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.u32 %r6, [%r4];
    st.global.u32 [%rd21], %r6;
    ld.shared.u32 %r6, [%r4+{}];
    st.global.u32 [%rd21+{}], %r6;",
                bytes - 4,
                bytes - 4
            );
            let out = run(&kernel(2, &body), 32, &[source.clone(), vec![0; source.len()]]).unwrap();
            for thread in 0..32 {
                for at in [0, bytes - 4] {
                    for byte in at..at + 4 {
                        let i = thread * bytes + byte;
                        let wanted = if byte < taken { source[i] } else { 0 };
                        assert_eq!(out[1][i], wanted, "{form} {bytes} of which {taken}, thread {thread}, byte {byte}");
                    }
                }
            }
        }
    }
}

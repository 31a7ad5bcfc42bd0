//! Bits: expectations are computed bit by bit, as the PTX ISA describes each instruction.

use super::*;
use Type::{B16, B32, B64, Pred, S16, S32, S64, U16, U32, U64};

fn width(ty: Type) -> u32 {
    8 * ty.bytes() as u32
}

fn bit(x: u64, i: u32) -> bool {
    x >> i & 1 == 1
}

/// The value whose bit i is `f(i)`.
fn from_bits(width: u32, f: impl Fn(u32) -> bool) -> u64 {
    (0..width).filter(|&i| f(i)).map(|i| 1u64 << i).sum()
}

#[test]
fn logic() {
    type Function = fn(bool, bool) -> bool;
    let functions: [(&str, Function); 3] = [("and", |x, y| x && y), ("or", |x, y| x || y), ("xor", |x, y| x != y)];
    for (name, f) in functions {
        for ty in [B16, B32, B64] {
            check(&case(&format!("{name}.{}", type_name(ty)), ty, &[ty, ty], move |s| {
                from_bits(width(ty), |i| f(bit(s[0], i), bit(s[1], i)))
            }));
        }
        check(&case(&format!("{name}.pred"), Pred, &[Pred, Pred], move |s| f(s[0] == 1, s[1] == 1) as u64));
        let negated = vec![super::name("%d0"), super::name("%s0"), Operand::Not("%s1".to_string())];
        check(&with_operands(&format!("{name}.pred"), negated, &[Pred], &[Pred, Pred], move |s| {
            vec![f(s[0] == 1, s[1] == 0) as u64]
        }));
    }
    for ty in [B16, B32, B64] {
        let name = type_name(ty);
        check(&case(&format!("not.{name}"), ty, &[ty], move |s| from_bits(width(ty), |i| !bit(s[0], i))));
        check(&case(&format!("cnot.{name}"), ty, &[ty], |s| (s[0] == 0) as u64));
    }
    check(&case("not.pred", Pred, &[Pred], |s| 1 - s[0]));
}

#[test]
fn shifts() {
    for ty in [B16, B32, B64] {
        check(&case(&format!("shl.{}", type_name(ty)), ty, &[ty, U32], move |s| {
            from_bits(width(ty), |i| i as u64 >= s[1] && bit(s[0], i - s[1] as u32))
        }));
    }
    for ty in [B16, B32, B64, U16, U32, U64, S16, S32, S64] {
        let sign_fills = matches!(ty, S16 | S32 | S64);
        check(&case(&format!("shr.{}", type_name(ty)), ty, &[ty, U32], move |s| {
            let top = width(ty) as u64 - 1;
            from_bits(width(ty), |i| match i as u64 + s[1] {
                from if from <= top => bit(s[0], from as u32),
                _ => sign_fills && bit(s[0], top as u32),
            })
        }));
    }
}

#[test]
fn funnel_shifts() {
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        let count = move |c: u64| if clamp { c.min(32) as u32 } else { (c % 32) as u32 };
        let source = |s: &[u64], i: u32| if i < 32 { bit(s[0], i) } else { bit(s[1], i - 32) };
        check(&case(&format!("shf.l.{mode}.b32"), B32, &[B32, B32, U32], move |s| {
            from_bits(32, |i| source(s, 32 + i - count(s[2])))
        }));
        check(&case(&format!("shf.r.{mode}.b32"), B32, &[B32, B32, U32], move |s| {
            from_bits(32, |i| source(s, i + count(s[2])))
        }));
    }
}

#[test]
fn counts() {
    for ty in [B32, B64] {
        let name = type_name(ty);
        check(&case(&format!("popc.{name}"), U32, &[ty], move |s| {
            (0..width(ty)).filter(|&i| bit(s[0], i)).count() as u64
        }));
        check(&case(&format!("clz.{name}"), U32, &[ty], move |s| {
            (0..width(ty)).rev().take_while(|&i| !bit(s[0], i)).count() as u64
        }));
        check(&case(&format!("brev.{name}"), ty, &[ty], move |s| {
            from_bits(width(ty), |i| bit(s[0], width(ty) - 1 - i))
        }));
    }
    for ty in [U32, S32, U64, S64] {
        let signed = matches!(ty, S32 | S64);
        let find = move |x: u64| {
            let sign = signed && bit(x, width(ty) - 1);
            (0..width(ty)).rev().find(|&i| bit(x, i) != sign)
        };
        let name = type_name(ty);
        check(&case(&format!("bfind.{name}"), U32, &[ty], move |s| find(s[0]).map_or(0xffff_ffff, |i| i as u64)));
        check(&case(&format!("bfind.shiftamt.{name}"), U32, &[ty], move |s| {
            find(s[0]).map_or(0xffff_ffff, |i| (width(ty) - 1 - i) as u64)
        }));
    }
}

#[test]
fn fields() {
    for ty in [U32, S32, U64, S64] {
        let (signed, top) = (matches!(ty, S32 | S64), width(ty) - 1);
        check(&case(&format!("bfe.{}", type_name(ty)), ty, &[ty, U32, U32], move |s| {
            let (position, length) = ((s[1] & 0xff) as u32, (s[2] & 0xff) as u32);
            let sign = signed && length > 0 && bit(s[0], (position + length.max(1) - 1).min(top));
            from_bits(width(ty), |i| if i < length && position + i <= top { bit(s[0], position + i) } else { sign })
        }));
    }
    for ty in [B32, B64] {
        check(&case(&format!("bfi.{}", type_name(ty)), ty, &[ty, ty, U32, U32], move |s| {
            let (position, length) = ((s[2] & 0xff) as u32, (s[3] & 0xff) as u32);
            from_bits(width(ty), |i| {
                if i >= position && i - position < length { bit(s[0], i - position) } else { bit(s[1], i) }
            })
        }));
    }
}

#[test]
fn masks_and_extension() {
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        let count = move |x: u64| if clamp { x } else { x % 32 };
        check(&case(&format!("bmsk.{mode}.b32"), B32, &[U32, U32], move |s| {
            let (first, length) = (count(s[0]), count(s[1]));
            from_bits(32, |i| (first..first + length).contains(&(i as u64)))
        }));
        for ty in [U32, S32] {
            check(&case(&format!("szext.{mode}.{}", type_name(ty)), ty, &[ty, U32], move |s| {
                let n = count(s[1]).min(32) as u32;
                let sign = ty == S32 && n > 0 && bit(s[0], n - 1);
                from_bits(32, |i| if i < n { bit(s[0], i) } else { sign })
            }));
        }
    }
}

#[test]
fn find_nth_set_bit() {
    check(&case("fns.b32", B32, &[B32, U32, S32], |s| {
        let (base, n) = (s[1], number(S32, s[2]));
        let found = match n {
            _ if base > 31 => None,
            0 => bit(s[0], base as u32).then_some(base as u32),
            1.. => (base as u32..32).filter(|&i| bit(s[0], i)).nth((n - 1) as usize),
            _ => (0..=base as u32).rev().filter(|&i| bit(s[0], i)).nth((-n - 1) as usize),
        };
        found.map_or(0xffff_ffff, |i| i as u64)
    }));
    // The examples in the manual.
    let mut operands = Operands::default();
    operands.push_scope();
    let d = declare(&mut operands, "d", &[B32]);
    for (base, n, expected) in [(3, 1, 3), (3, -1, 3), (2, 1, 3), (2, -1, 1)] {
        let list = vec![super::name("%d0"), Operand::Int(0xaaaa_aaaa), Operand::Int(base), Operand::Int(n)];
        let op = Integer::lower(&instruction("fns.b32", list), &mut operands).unwrap().unwrap();
        let mut registers = allocate(&operands);
        run(&op, &mut registers, Mask::MAX);
        assert_eq!(peek(&registers, d[0].0, d[0].1, 17), expected, "base {base}, offset {n}");
    }
}

fn byte(s: &[u64], i: u64) -> u64 {
    (s[1] << 32 | s[0]) >> (8 * i) & 0xff
}

#[test]
fn permutation() {
    check(&case("prmt.b32", B32, &[B32, B32, B32], |s| {
        let part = |i: u64| {
            let selector = s[2] >> (4 * i) & 15;
            let byte = byte(s, selector % 8);
            let byte = if selector < 8 {
                byte
            } else if byte >= 128 {
                255
            } else {
                0
            };
            byte << (8 * i)
        };
        part(0) + part(1) + part(2) + part(3)
    }));
    // Source of byte i for a position c from 0 to 3.
    type Source = fn(u64, u64) -> u64;
    let modes: [(&str, Source); 6] = [
        ("f4e", |c, i| c + i),
        ("b4e", |c, i| (8 + c - i) % 8),
        ("rc8", |c, _| c),
        ("ecl", |c, i| c.max(i)),
        ("ecr", |c, i| c.min(i)),
        ("rc16", |c, i| 2 * (c % 2) + i % 2),
    ];
    for (mode, source) in modes {
        check(&case(&format!("prmt.b32.{mode}"), B32, &[B32, B32, B32], move |s| {
            (0..4).map(|i| byte(s, source(s[2] % 4, i)) << (8 * i)).sum()
        }));
    }
}

#[test]
fn any_function_of_three_bits() {
    let value = |table: i64, s: &[u64]| {
        from_bits(32, |i| {
            let row = 4 * bit(s[0], i) as u32 + 2 * bit(s[1], i) as u32 + bit(s[2], i) as u32;
            bit(table as u64, row)
        })
    };
    for table in 0..256 {
        let mut operands = names("d", 1);
        operands.extend(names("s", 3));
        operands.push(Operand::Int(table));
        check(&with_operands("lop3.b32", operands, &[B32], &[B32; 3], move |s| vec![value(table, s)]));
    }
    // A table of few ones makes zeros frequent enough to test both answers.
    for (name, and) in [("and", true), ("or", false)] {
        for table in [0x00, 0x80, 0x01, 0xff, 0x96] {
            for negated in [false, true] {
                let mut operands = vec![Operand::Pair("%d0".to_string(), "%d1".to_string())];
                operands.extend(names("s", 3));
                operands.push(Operand::Int(table));
                operands.push(if negated { Operand::Not("%s3".to_string()) } else { super::name("%s3") });
                let form = format!("lop3.{name}.b32");
                check(&with_operands(&form, operands, &[B32, Pred], &[B32, B32, B32, Pred], move |s| {
                    let (value, q) = (value(table, s), (s[3] == 1) != negated);
                    vec![value, if and { value != 0 && q } else { value != 0 || q } as u64]
                }));
            }
        }
    }
}

//! Arithmetic: expectations are computed in 128 bits.

use super::*;
use Type::{B32, S8, S16, S32, S64, U8, U16, U32, U64};

const INTEGERS: [Type; 6] = [U16, U32, U64, S16, S32, S64];

fn is_signed(ty: Type) -> bool {
    matches!(ty, S16 | S32 | S64)
}

fn width(ty: Type) -> u32 {
    8 * ty.bytes() as u32
}

fn range(ty: Type) -> (i128, i128) {
    let bits = width(ty);
    if is_signed(ty) { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn saturate(ty: Type, value: i128) -> u64 {
    let (low, high) = range(ty);
    truncate(ty, value.max(low).min(high))
}

/// The upper half of the double-width product; two's complement arithmetic modulo 2^128 loses nothing of it.
fn high_product(ty: Type, a: i128, b: i128) -> i128 {
    (a.wrapping_mul(b) as u128 >> width(ty)) as i128
}

fn quotient(ty: Type, a: i128, b: i128) -> u64 {
    if b == 0 { truncate(ty, -1) } else { truncate(ty, a / b) }
}

fn remainder(ty: Type, a: i128, b: i128) -> u64 {
    if b == 0 { truncate(ty, -1) } else { truncate(ty, a - a / b * b) }
}

fn wide(ty: Type) -> Option<Type> {
    match ty {
        U16 => Some(U32),
        S16 => Some(S32),
        U32 => Some(U64),
        S32 => Some(S64),
        _ => None,
    }
}

fn two(form: &str, ty: Type, f: fn(Type, i128, i128) -> u64) -> Case {
    case(&format!("{form}.{}", type_name(ty)), ty, &[ty, ty], move |s| f(ty, number(ty, s[0]), number(ty, s[1])))
}

fn three(form: &str, ty: Type, f: fn(Type, i128, i128, i128) -> u64) -> Case {
    case(&format!("{form}.{}", type_name(ty)), ty, &[ty, ty, ty], move |s| {
        f(ty, number(ty, s[0]), number(ty, s[1]), number(ty, s[2]))
    })
}

#[test]
fn sums_products_and_quotients_at_every_width() {
    for ty in INTEGERS {
        let cases = [
            two("add", ty, |ty, a, b| truncate(ty, a + b)),
            two("sub", ty, |ty, a, b| truncate(ty, a - b)),
            two("mul.lo", ty, |ty, a, b| truncate(ty, a.wrapping_mul(b))),
            two("mul.hi", ty, |ty, a, b| truncate(ty, high_product(ty, a, b))),
            two("div", ty, quotient),
            two("rem", ty, remainder),
            two("min", ty, |ty, a, b| truncate(ty, if b < a { b } else { a })),
            two("max", ty, |ty, a, b| truncate(ty, if b > a { b } else { a })),
            three("mad.lo", ty, |ty, a, b, c| truncate(ty, a.wrapping_mul(b).wrapping_add(c))),
            three("mad.hi", ty, |ty, a, b, c| truncate(ty, high_product(ty, a, b).wrapping_add(c))),
            three("sad", ty, |ty, a, b, c| truncate(ty, c + (a - b).abs())),
        ];
        cases.iter().for_each(check);
    }
}

#[test]
fn signs() {
    for ty in [S16, S32, S64] {
        let name = type_name(ty);
        check(&case(&format!("abs.{name}"), ty, &[ty], move |s| truncate(ty, number(ty, s[0]).abs())));
        check(&case(&format!("neg.{name}"), ty, &[ty], move |s| truncate(ty, -number(ty, s[0]))));
    }
}

#[test]
fn wide_products() {
    for ty in INTEGERS {
        let Some(wide) = wide(ty) else { continue };
        let name = type_name(ty);
        check(&case(&format!("mul.wide.{name}"), wide, &[ty, ty], move |s| {
            truncate(wide, number(ty, s[0]) * number(ty, s[1]))
        }));
        check(&case(&format!("mad.wide.{name}"), wide, &[ty, ty, wide], move |s| {
            truncate(wide, number(ty, s[0]) * number(ty, s[1]) + number(wide, s[2]))
        }));
    }
}

#[test]
fn saturation() {
    check(&two("add.sat", S32, |ty, a, b| saturate(ty, a + b)));
    check(&two("sub.sat", S32, |ty, a, b| saturate(ty, a - b)));
    check(&three("mad.hi.sat", S32, |ty, a, b, c| saturate(ty, (a * b).div_euclid(1 << 32) + c)));
}

/// The low 24 bits as a number.
fn low24(ty: Type, x: i128) -> i128 {
    let low = x.rem_euclid(1 << 24);
    if ty == S32 && low >= 1 << 23 { low - (1 << 24) } else { low }
}

#[test]
fn products_of_24_bits() {
    fn low(ty: Type, a: i128, b: i128) -> i128 {
        low24(ty, a) * low24(ty, b)
    }
    fn high(ty: Type, a: i128, b: i128) -> i128 {
        low(ty, a, b).div_euclid(1 << 16)
    }
    for ty in [S32, U32] {
        check(&two("mul24.lo", ty, |ty, a, b| truncate(ty, low(ty, a, b))));
        check(&two("mul24.hi", ty, |ty, a, b| truncate(ty, high(ty, a, b))));
        check(&three("mad24.lo", ty, |ty, a, b, c| truncate(ty, low(ty, a, b) + c)));
        check(&three("mad24.hi", ty, |ty, a, b, c| truncate(ty, high(ty, a, b) + c)));
    }
    check(&three("mad24.hi.sat", S32, |ty, a, b, c| saturate(ty, high(ty, a, b) + c)));
}

/// `f` on the two halves of packed operands.
fn packed(form: &str, half: Type, f: fn(i128, i128) -> i128) -> Case {
    case(form, B32, &[B32, B32], move |s| {
        let part = |i: u32| {
            let operand = |x: u64| number(half, x >> (16 * i) & 0xffff);
            truncate(half, f(operand(s[0]), operand(s[1]))) << (16 * i)
        };
        part(0) | part(1)
    })
}

#[test]
fn packed_halves_and_relu() {
    let cases = [
        packed("add.u16x2", U16, |a, b| a + b),
        packed("add.s16x2", S16, |a, b| a + b),
        packed("min.u16x2", U16, |a, b| a.min(b)),
        packed("max.u16x2", U16, |a, b| a.max(b)),
        packed("min.s16x2", S16, |a, b| a.min(b)),
        packed("max.s16x2", S16, |a, b| a.max(b)),
        packed("min.relu.s16x2", S16, |a, b| a.min(b).max(0)),
        packed("max.relu.s16x2", S16, |a, b| a.max(b).max(0)),
        packed("min.s16x2.relu", S16, |a, b| a.min(b).max(0)),
        packed("max.s16x2.relu", S16, |a, b| a.max(b).max(0)),
        two("min.relu", S32, |ty, a, b| truncate(ty, a.min(b).max(0))),
        two("max.relu", S32, |ty, a, b| truncate(ty, a.max(b).max(0))),
    ];
    cases.iter().for_each(check);
}

#[test]
fn dot_products() {
    let byte = |ty: Type, x: u64, i: usize| number(if ty == S32 { S8 } else { U8 }, x >> (8 * i) & 0xff);
    let half = |ty: Type, x: u64, i: usize| number(if ty == S32 { S16 } else { U16 }, x >> (16 * i) & 0xffff);
    for a in [S32, U32] {
        for b in [S32, U32] {
            let types = format!("{}.{}", type_name(a), type_name(b));
            let d = if (a, b) == (U32, U32) { U32 } else { S32 };
            check(&case(&format!("dp4a.{types}"), d, &[a, b, d], move |s| {
                let products: i128 = (0..4).map(|i| byte(a, s[0], i) * byte(b, s[1], i)).sum();
                truncate(d, products + number(d, s[2]))
            }));
            for (half_name, first) in [("lo", 0), ("hi", 2)] {
                check(&case(&format!("dp2a.{half_name}.{types}"), d, &[a, b, d], move |s| {
                    let products: i128 = (0..2).map(|i| half(a, s[0], i) * byte(b, s[1], first + i)).sum();
                    truncate(d, products + number(d, s[2]))
                }));
            }
        }
    }
}

/// A carry form as a case: the flag is a source and a destination of its own, after the others.
fn check_carry(form: &str, ty: Type, sources: usize, f: fn(Type, &[i128], i128) -> i128) {
    let subtract = form.starts_with("sub");
    let (reads, writes) =
        (form.starts_with("addc") || form.starts_with("subc") || form.starts_with("madc"), { form.ends_with(".cc") });
    let form = format!("{form}.{}", type_name(ty));
    let mut operands = Operands::default();
    operands.push_scope();
    let from = declare(&mut operands, "s", &vec![ty; sources]);
    let to = declare(&mut operands, "d", &[ty]);
    let mut list = names("d", 1);
    list.extend(names("s", sources));
    let op = Integer::lower(&instruction(&form, list.clone()), &mut operands).unwrap().unwrap();
    let checked = Case { carry: [reads, writes], ..with_operands(&form, list, &[ty], &vec![ty; sources], |_| vec![]) };
    check_visit(&checked, &mut op.clone(), &from, &to, &mut operands);

    let edges = edges(ty);
    let (mut random, mut registers, flag) = (Random(SEED), allocate(&operands), operands.carry());
    for _ in 0..WARPS {
        let active = random.next() as Mask;
        for lane in 0..LANES {
            from.iter().for_each(|&(class, reg)| poke(&mut registers, class, reg, lane, random.value(ty, &edges)));
            poke(&mut registers, Class::Pred, flag, lane, random.next());
        }
        let before = registers.clone();
        run(&op, &mut registers, active);
        for lane in 0..LANES {
            let sources: Vec<i128> = from.iter().map(|&(c, r)| number(ty, peek(&before, c, r, lane))).collect();
            let carry_in = peek(&before, Class::Pred, flag, lane);
            // A difference takes away what the flag lacks, and sets it where there was no borrow.
            let taken = if subtract { 1 - carry_in } else { carry_in };
            let exact = f(ty, &sources, if reads { taken as i128 } else { 0 });
            let runs = active >> lane & 1 == 1;
            let found = (peek(&registers, to[0].0, to[0].1, lane), peek(&registers, Class::Pred, flag, lane));
            let out = (exact >> width(ty) & 1) as u64 ^ subtract as u64;
            let carry = if runs && writes { out } else { carry_in };
            let value = if runs { truncate(ty, exact) } else { peek(&before, to[0].0, to[0].1, lane) };
            assert_eq!(found, (value, carry), "{form} of {sources:x?}, carry {carry_in}, seed {SEED:#x}");
        }
    }
}

#[test]
fn carries_and_borrows() {
    for ty in [U32, S32, U64, S64] {
        for form in ["add.cc", "addc", "addc.cc"] {
            check_carry(form, ty, 2, |ty, s, c| truncate(ty, s[0]) as i128 + truncate(ty, s[1]) as i128 + c);
        }
        for form in ["sub.cc", "subc", "subc.cc"] {
            check_carry(form, ty, 2, |ty, s, c| truncate(ty, s[0]) as i128 - truncate(ty, s[1]) as i128 - c);
        }
        for form in ["mad.lo.cc", "madc.lo", "madc.lo.cc"] {
            check_carry(form, ty, 3, |ty, s, c| {
                truncate(ty, s[0].wrapping_mul(s[1])) as i128 + truncate(ty, s[2]) as i128 + c
            });
        }
        for form in ["mad.hi.cc", "madc.hi", "madc.hi.cc"] {
            check_carry(form, ty, 3, |ty, s, c| {
                truncate(ty, high_product(ty, s[0], s[1])) as i128 + truncate(ty, s[2]) as i128 + c
            });
        }
    }
}

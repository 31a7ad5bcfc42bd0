//! Runs an [`Integer`]: one `match` on the shape, then one on the operation, then the lanes.

use super::Integer;
use super::arithmetic::*;
use super::bits::*;
use super::select::*;
use super::{carry, compare};
use crate::alu::lanes::{map2, mask1, select};
use crate::program::{LANES, Lanes32, Lanes64, Mask, Reg, Registers};

impl Integer {
    #[inline(always)]
    pub fn execute(&self, registers: &mut Registers, active: Mask) {
        use Integer::*;
        let get = |reg: Reg| registers.get32(reg);
        let (d, value): (Reg, Lanes32) = match self {
            Unary16(op, r) => (r.d, low16(unary32(*op, &extend16(get(r.a), true)))),
            Unary32(op, r) => (r.d, unary32(*op, get(r.a))),
            Count32(op, r) => (r.d, count32(*op, get(r.a))),
            Count64(op, r) => (r.d, count64(*op, registers.get64(r.a))),
            Binary16 { op, signed, r } => {
                (r.d, low16(binary32(*op, &extend16(get(r.a), *signed), &extend16(get(r.b), *signed))))
            }
            Binary32(op, r) => (r.d, binary32(*op, get(r.a), get(r.b))),
            Special2(op, r) => (r.d, special2(*op, get(r.a), get(r.b))),
            Ternary16 { op, signed, r } => {
                (r.d, low16(ternary32(*op, &extend16(get(r.a), *signed), &extend16(get(r.b), *signed), get(r.c))))
            }
            Ternary32(op, r) => (r.d, ternary32(*op, get(r.a), get(r.b), get(r.c))),
            Special3(op, r) => (r.d, special3(*op, get(r.a), get(r.b), get(r.c))),
            Logic32(op, r) => (r.d, logic32(*op, get(r.a), get(r.b))),
            Shift16(op, r) => (r.d, shift16(*op, get(r.a), get(r.b))),
            Shift32(op, r) => (r.d, shift32(*op, get(r.a), get(r.b))),
            Bits2(op, r) => (r.d, bits2(*op, get(r.a), get(r.b))),
            Bits3(op, r) => (r.d, bits3(*op, get(r.a), get(r.b), get(r.c))),
            Insert32(r) => (r.d, insert_field32(get(r.a), get(r.b), get(r.c), get(r.e))),
            Logic3 { table, r } => (r.d, logic3(*table, get(r.a), get(r.b), get(r.c))),
            Select32(r) => (r.d, select(registers.get_pred(r.c), get(r.a), get(r.b))),
            SelectSign32(sign, r) => (r.d, select(chooses(*sign, get(r.c)), get(r.a), get(r.b))),
            CopySign32(r) => (r.d, copysign32(get(r.a), get(r.b))),
            Join16(r) => (r.d, join16(get(r.a), get(r.b))),
            Set { comparison, d, yes } => {
                let [first, second] = comparison.answers(registers);
                let value = select(first, &[*yes; LANES], &[0; LANES]);
                if comparison.packed {
                    (*d, join16(&value, &select(second, &[*yes; LANES], &[0; LANES])))
                } else {
                    (*d, value)
                }
            }
            _ => return self.execute64(registers, active),
        };
        registers.set32(d, value, active);
    }

    /// The shapes with a 64-bit result.
    #[inline(always)]
    fn execute64(&self, registers: &mut Registers, active: Mask) {
        use Integer::*;
        let get = |reg: Reg| registers.get64(reg);
        let get32 = |reg: Reg| registers.get32(reg);
        let (d, value): (Reg, Lanes64) = match self {
            Unary64(op, r) => (r.d, unary64(*op, get(r.a))),
            Binary64(op, r) => (r.d, binary64(*op, get(r.a), get(r.b))),
            Ternary64(op, r) => (r.d, ternary64(*op, get(r.a), get(r.b), get(r.c))),
            MulWide { signed, r } => (r.d, mul_wide(*signed, get32(r.a), get32(r.b))),
            MadWide { signed, r } => {
                (r.d, map2(&mul_wide(*signed, get32(r.a), get32(r.b)), get(r.c), u64::wrapping_add))
            }
            Logic64(op, r) => (r.d, logic64(*op, get(r.a), get(r.b))),
            Shift64(op, r) => (r.d, shift64(*op, get(r.a), get32(r.b))),
            Extract64 { signed, r } => (r.d, extract64(*signed, get(r.a), get32(r.b), get32(r.c))),
            Insert64(r) => (r.d, insert_field64(get(r.a), get(r.b), get32(r.c), get32(r.e))),
            Select64(r) => (r.d, select(registers.get_pred(r.c), get(r.a), get(r.b))),
            SelectSign64(sign, r) => (r.d, select(chooses(*sign, get32(r.c)), get(r.a), get(r.b))),
            CopySign64(r) => (r.d, copysign64(get(r.a), get(r.b))),
            Join32(r) => (r.d, join32(get32(r.a), get32(r.b))),
            _ => return self.execute_predicate(registers, active),
        };
        registers.set64(d, value, active);
    }

    /// The shapes with a predicate as result.
    #[inline(always)]
    fn execute_predicate(&self, registers: &mut Registers, active: Mask) {
        use Integer::*;
        let (d, value): (Reg, Mask) = match self {
            Setp { comparison, p, q } => {
                let [first, second] = comparison.answers(registers);
                if let Some(q) = q {
                    registers.set_pred(*q, second, active);
                }
                (*p, first)
            }
            Predicates(op, negated, r) => {
                let a = negate_if(negated[0], registers.get_pred(r.a));
                let b = negate_if(negated[1], registers.get_pred(r.b));
                (r.d, logic_mask(*op, a, b))
            }
            PredicateMove { negated, r } => (r.d, negate_if(*negated, registers.get_pred(r.a))),
            Testp32(property, r) => (r.d, compare::property32(*property, registers.get32(r.a))),
            Testp64(property, r) => (r.d, compare::property64(*property, registers.get64(r.a))),
            _ => return self.execute_several(registers, active),
        };
        registers.set_pred(d, value, active);
    }

    /// The shapes with several results.
    #[inline(always)]
    fn execute_several(&self, registers: &mut Registers, active: Mask) {
        use Integer::*;
        match self {
            CarrySum { wide: false, subtract, flag, r } => carry::sum32(*subtract, flag, r, registers, active),
            CarrySum { wide: true, subtract, flag, r } => carry::sum64(*subtract, flag, r, registers, active),
            CarryMad { wide: false, high, signed, flag, r } => carry::mad32(*high, *signed, flag, r, registers, active),
            CarryMad { wide: true, high, signed, flag, r } => carry::mad64(*high, *signed, flag, r, registers, active),
            Split16(split) => split.run16(registers, active),
            Split32(split) => split.run32(registers, active),
            Pack(parts) => parts.pack(registers, active),
            Unpack(parts) => parts.unpack(registers, active),
            Logic3Predicate { table, and, r, p, q, negated } => {
                let value = logic3(*table, registers.get32(r.a), registers.get32(r.b), registers.get32(r.c));
                let (some, q) = (mask1(&value, |x| x != 0), negate_if(*negated, registers.get_pred(*q)));
                registers.set32(r.d, value, active);
                registers.set_pred(*p, if *and { some & q } else { some | q }, active);
            }
            // The functions before this one have the rest.
            _ => {}
        }
    }
}

#[inline(always)]
fn negate_if(negated: bool, mask: Mask) -> Mask {
    if negated { !mask } else { mask }
}

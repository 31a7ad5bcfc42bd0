//! `ld`, `ldu`, `st`, `atom`, `red`: which space, which element, which registers, and whether the access is strong.
//! (PTX ISA, "ld", "st", "atom", "red"; "Operand Size Exceeding Instruction-Type Size".)

use crate::lower::kernel::{Lowering, Part};
use crate::lower::modifiers::{ATOMICS, LOADS, atomic_op, modifiers};
use crate::lower::operands::{Symbol, class_of, immediate};
use crate::lower::problem::{Outcome, invalid, unsupported};
use crate::lower::text;
use crate::program::{Address, Atomic, AtomicOp, Class, Op, Preset, Reg, Value};
use crate::ptx::ast::{Instruction, Operand, Space, Type};

/// A register as the element of a load or store.
#[derive(Debug, Clone, Copy)]
enum Element {
    Register(Type, Reg),
    /// `_`
    None,
    /// A source that is no register: its bits.
    Constant(Preset),
}

impl Lowering<'_> {
    pub fn load(&mut self, instruction: &Instruction) -> Outcome<()> {
        let modifiers = modifiers(instruction, LOADS)?;
        modifiers.check_element()?;
        let (strong, acquire) = modifiers.strength("acquire", "release")?;
        if (modifiers.read_only || instruction.opcode == "ldu")
            && !matches!(modifiers.space, Space::Global | Space::Generic)
        {
            return invalid("read-only loads are loads of global memory");
        }
        let [to, address] = self.without_policy(instruction, modifiers.policy, 2)? else {
            unreachable!("two operands")
        };
        let bytes = modifiers.ty.bytes() * modifiers.elements;
        let (address, space) = self.address(address, modifiers.space, bytes)?;
        let ty = modifiers.ty;
        let elements: Vec<Element> =
            vector(to, modifiers.elements)?.iter().map(|e| self.destination(e, ty)).collect::<Outcome<_>>()?;
        let class = common_class(&elements, ty)?;
        let mut to = Vec::new();
        let mut halves = Vec::new();
        let mut wider = false;
        for element in elements {
            match element {
                Element::Register(found, reg) => {
                    wider |= found.bytes() > ty.bytes();
                    if ty == Type::S8 && found.bytes() == 2 {
                        halves.push(reg);
                    }
                    to.push(reg);
                }
                _ => to.push(self.operands.scratch(class)),
            }
        }
        let signed = wider && matches!(ty, Type::S8 | Type::S16 | Type::S32);
        let value = Value { bytes: ty.bytes() as u32, signed, wide: class == Class::R64 };
        self.emit(Op::Load { space, value, address, to, strong });
        for reg in halves {
            // Sign-extended to 16 bits, and zeros above, as every 16-bit register is kept.
            let reg = Part::Register(Type::B32, reg);
            self.arithmetic("and.b32", &[reg, reg, Part::Number(0xFFFF)])?;
        }
        if acquire {
            self.emit(Op::Fence);
        }
        Ok(())
    }

    pub fn store(&mut self, instruction: &Instruction) -> Outcome<()> {
        let modifiers = modifiers(instruction, LOADS)?;
        modifiers.check_element()?;
        let (strong, release) = modifiers.strength("release", "acquire")?;
        let [address, from] = self.without_policy(instruction, modifiers.policy, 2)? else {
            unreachable!("two operands")
        };
        let bytes = modifiers.ty.bytes() * modifiers.elements;
        let (address, space) = self.address(address, modifiers.space, bytes)?;
        if matches!(space, Space::Const | Space::Param) {
            return invalid(format!("{space:?} memory cannot be written"));
        }
        if modifiers.read_only {
            return invalid(".nc is not allowed here");
        }
        let ty = modifiers.ty;
        let elements: Vec<Element> =
            vector(from, modifiers.elements)?.iter().map(|e| self.source(e, ty)).collect::<Outcome<_>>()?;
        let class = common_class(&elements, ty)?;
        let mut from = Vec::new();
        for element in elements {
            from.push(match element {
                Element::Register(_, reg) => reg,
                Element::Constant(preset) => self.operands.preset(class, preset),
                Element::None => return invalid("found _ as the source of a store"),
            });
        }
        if release {
            self.emit(Op::Fence);
        }
        let value = Value { bytes: ty.bytes() as u32, signed: false, wide: class == Class::R64 };
        self.emit(Op::Store { space, value, address, from, strong });
        Ok(())
    }

    pub fn atomic(&mut self, instruction: &Instruction) -> Outcome<()> {
        if let Some(vector) = instruction.modifiers.iter().find(|m| matches!(m.as_str(), "v2" | "v4" | "v8")) {
            return unsupported(format!("vector atomics (.{vector}) are not supported"));
        }
        let modifiers = modifiers(instruction, ATOMICS)?;
        if modifiers.order.is_some_and(|order| matches!(order, "weak" | "volatile")) {
            return invalid("an atomic is .relaxed, .acquire, .release or .acq_rel");
        }
        let returns = instruction.opcode == "atom";
        let function = Atomic { op: atomic_op(&modifiers, returns)?, ty: modifiers.ty };
        let swap = function.op == AtomicOp::CompareAndSwap;
        let count = returns as usize + 2 + swap as usize;
        let operands = self.without_policy(instruction, modifiers.policy, count)?;
        let (to, rest) = if returns { (Some(&operands[0]), &operands[1..]) } else { (None, operands) };
        let ty = modifiers.ty;
        let (address, space) = self.address(&rest[0], modifiers.space, ty.bytes())?;
        if !matches!(space, Space::Global | Space::Shared | Space::Generic) {
            return invalid(format!("{space:?} memory has no atomics"));
        }
        let b = self.operands.read(&rest[1], ty)?;
        let c = if swap { Some(self.operands.read(&rest[2], ty)?) } else { None };
        let to = match to {
            Some(Operand::Name(name)) if name == "_" => None,
            Some(to) => Some(self.operands.write(to, ty)?),
            None => None,
        };
        self.emit(Op::Atomic { space, function, address, to, b, c });
        Ok(())
    }

    /// The operands without the cache policy, which has no effect on values.
    pub fn without_policy<'i>(
        &mut self,
        instruction: &'i Instruction,
        policy: bool,
        count: usize,
    ) -> Outcome<&'i [Operand]> {
        let operands = &instruction.operands;
        if operands.len() != count + policy as usize {
            return invalid(format!("found {} operands, expected {}", operands.len(), count + policy as usize));
        }
        if policy {
            self.operands.read(&operands[count], Type::B64)?;
        }
        Ok(&operands[..count])
    }

    /// `[register+offset]`, `[variable+offset]` or `[number]`, for an access of `bytes` bytes; also the space, which for
    /// the `.param` variables of calls is local memory.
    pub fn address(&mut self, operand: &Operand, space: Space, bytes: usize) -> Outcome<(Address, Space)> {
        let Operand::Address { base, offset } = operand else {
            return invalid(format!("found {}, expected an address in brackets", text::operand(operand)));
        };
        let offset = *offset;
        let Some(name) = base else {
            let base = self.operands.preset(Class::R64, Preset::Bits(offset as u64));
            return Ok((Address { base, wide: true, offset: 0 }, space));
        };
        let (found, address, size) = match self.operands.lookup(name) {
            Some(Symbol::Register { ty, reg }) => {
                let wide = match ty {
                    Type::B64 | Type::U64 | Type::S64 => true,
                    Type::B32 | Type::U32 | Type::S32 => false,
                    _ => return invalid(format!("{name} is a {ty:?} register, expected an address of 64 or 32 bits")),
                };
                let in_call = space == Space::Param && !self.calls.is_empty();
                let space = if in_call { Space::Local } else { space };
                return Ok((Address { base: reg, wide, offset }, space));
            }
            Some(Symbol::Variable { space, address, bytes }) => (space, address, bytes),
            Some(Symbol::Slot { address, bytes }) if space == Space::Param => (Space::Local, address, bytes),
            Some(Symbol::Slot { .. }) => return invalid(format!("{name} is a .param variable")),
            Some(Symbol::Function) => return invalid(format!("{name} is a function")),
            None => return invalid(format!("{name} is not declared")),
        };
        let same = found == space || space == Space::Param && found == Space::Local;
        let generic = space == Space::Generic && matches!(found, Space::Global | Space::Const);
        if !same && !generic {
            return invalid(format!("{name} lies in {found:?} memory, expected {space:?}"));
        }
        let inside = offset >= 0 && (offset as u64).checked_add(bytes as u64).is_some_and(|end| end <= size);
        if space == Space::Param && !inside {
            return invalid(format!("{bytes} bytes at offset {offset} are not inside {name}, which has {size}"));
        }
        let base = self.operands.preset(Class::R64, Preset::Bits(address));
        let space = if generic { Space::Generic } else { found };
        Ok((Address { base, wide: true, offset }, space))
    }

    /// A load's destination: a register as wide as the element or wider.
    fn destination(&mut self, operand: &Operand, ty: Type) -> Outcome<Element> {
        if *operand == Operand::Name("_".to_string()) {
            return Ok(Element::None);
        }
        match self.operands.register(operand)? {
            Some((found, reg)) => check_wider(operand, found, ty).map(|()| Element::Register(found, reg)),
            None => invalid(format!("found {} as destination, expected a register", text::operand(operand))),
        }
    }

    /// A store's source.
    fn source(&mut self, operand: &Operand, ty: Type) -> Outcome<Element> {
        if let Some((found, reg)) = self.operands.register(operand)? {
            return check_wider(operand, found, ty).map(|()| Element::Register(found, reg));
        }
        Ok(match operand {
            Operand::Name(name) => match self.operands.lookup(name) {
                Some(Symbol::Variable { address, .. } | Symbol::Slot { address, .. }) if ty.bytes() >= 4 => {
                    Element::Constant(Preset::Bits(address))
                }
                _ => return invalid(format!("found {name}, expected a register or a number")),
            },
            _ => Element::Constant(Preset::Bits(immediate(operand, ty)?)),
        })
    }
}

/// The elements of `{a, b}`, or the one operand.
fn vector(operand: &Operand, count: usize) -> Outcome<&[Operand]> {
    match operand {
        Operand::Vector(elements) if elements.len() == count => Ok(elements),
        Operand::Vector(elements) => {
            invalid(format!("found a vector of {} elements, expected {count}", elements.len()))
        }
        _ if count == 1 => Ok(std::slice::from_ref(operand)),
        _ => invalid(format!("found {}, expected a vector of {count} elements", text::operand(operand))),
    }
}

/// Integers and bits fit registers at least as wide; floats need their own width.
fn check_wider(operand: &Operand, found: Type, ty: Type) -> Outcome<()> {
    let float = |ty: Type| matches!(ty, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 | Type::F32 | Type::F64);
    let fits = match found {
        Type::Pred => false,
        _ if float(ty) || float(found) => found.bytes() == ty.bytes(),
        _ => found.bytes() >= ty.bytes(),
    };
    match fits {
        true => Ok(()),
        false => invalid(format!("{} is a {found:?} register, which does not fit {ty:?}", text::operand(operand))),
    }
}

/// The register file of all elements, which must be one.
fn common_class(elements: &[Element], ty: Type) -> Outcome<Class> {
    let mut class = None;
    for element in elements {
        if let Element::Register(found, _) = element {
            let found = class_of(*found);
            if class.is_some_and(|class| class != found) {
                return unsupported("a vector of 32-bit and 64-bit registers is not supported");
            }
            class = Some(found);
        }
    }
    Ok(class.unwrap_or(class_of(ty)))
}

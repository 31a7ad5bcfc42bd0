//! Variables, parameters and their initial values.
//! (PTX ISA, "Variables", "Kernel Function Parameters", "Array Declarations", "Initializers".)

use super::ast::{Initial, Space, Type, Variable};
use super::constants::Constant;
use super::lexer::TokenKind;
use super::module::{Parser, space};
use crate::fault::Result;

const MAX_ALIGN: u64 = 1 << 20;
/// Bytes of one variable: in global memory, and elsewhere.
const MAX_GLOBAL_BYTES: u64 = 1 << 40;
const MAX_BYTES: u64 = 1 << 28;
const MAX_DIMENSIONS: usize = 8;
/// Members of a register family, `%r<N>`.
pub const MAX_REGISTERS: u64 = 1 << 24;

/// What stands before a variable's name.
struct Head {
    space: Space,
    align: Option<u64>,
    /// Elements of `.v2`, `.v4`: a vector variable is an array aligned to its own size.
    vector: Option<u64>,
    ty: Type,
}

impl<'t> Parser<'t> {
    /// Variables declared together, after the name of their space: `.align 4 .b8 a[12] = {…}, b;`.
    pub fn variables(&mut self, space: Space, external: bool) -> Result<Vec<Variable>> {
        let head = self.head(space)?;
        let mut variables = Vec::new();
        loop {
            variables.push(self.variable(&head, external, false)?);
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.cursor.expect(b';')?;
        Ok(variables)
    }

    /// Parameters or results in parentheses: `(.param .u64 .ptr .global .align 16 k_param_0, …)`.
    pub fn parameters(&mut self) -> Result<Vec<Variable>> {
        let mut parameters = Vec::new();
        self.cursor.expect(b'(')?;
        if self.cursor.eat(b')') {
            return Ok(parameters);
        }
        loop {
            match self.cursor.directive() {
                Some("param") => self.cursor.take(),
                Some("reg") => return self.cursor.refuse("a parameter in a register"),
                _ => return self.cursor.expected(".param"),
            };
            let head = self.head(Space::Param)?;
            parameters.push(self.variable(&head, false, true)?);
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.cursor.expect(b')')?;
        Ok(parameters)
    }

    /// A type such as `.b32`.
    pub fn fundamental_type(&mut self) -> Result<Type> {
        match self.cursor.directive().and_then(Type::parse) {
            Some(ty) => {
                self.cursor.take();
                Ok(ty)
            }
            None => self.cursor.expected("a type such as .b32"),
        }
    }

    fn alignment(&mut self) -> Result<u64> {
        let place = self.cursor.take();
        let align = self.cursor.count("an alignment")?;
        match align.is_power_of_two() && align <= MAX_ALIGN {
            true => Ok(align),
            false => {
                self.cursor.fail(place, &format!("found .align {align}, expected a power of two up to {MAX_ALIGN}"))
            }
        }
    }

    fn head(&mut self, space: Space) -> Result<Head> {
        let (mut align, mut vector) = (None, None);
        loop {
            match self.cursor.directive() {
                Some("align") => align = Some(self.alignment()?),
                Some(width @ ("v2" | "v4" | "v8")) => {
                    vector = width[1..].parse().ok();
                    self.cursor.take();
                }
                Some("attribute") => return self.cursor.refuse(".attribute"),
                Some("pred" | "texref" | "samplerref" | "surfref") => {
                    return self.cursor.refuse(&format!("a variable of type .{}", self.cursor.token.text));
                }
                _ => break,
            }
        }
        let ty = self.fundamental_type()?;
        if space == Space::Param && self.cursor.eat_directive("ptr") {
            self.pointer_hints()?;
        }
        Ok(Head { space, align, vector, ty })
    }

    /// What `.ptr` says of the memory that a parameter points to; it changes nothing here.
    fn pointer_hints(&mut self) -> Result<()> {
        if self.cursor.directive().and_then(space).is_some() {
            self.cursor.take();
        }
        if self.cursor.directive() == Some("align") {
            self.alignment()?;
        }
        Ok(())
    }

    fn variable(&mut self, head: &Head, external: bool, parameter: bool) -> Result<Variable> {
        let place = self.cursor.token;
        let name = self.cursor.name("a variable's name")?.to_string();
        let mut dimensions = self.dimensions()?;
        dimensions.extend(head.vector);
        let mut init = Initial::default();
        if !parameter && self.cursor.at(b'=') {
            if !matches!(head.space, Space::Global | Space::Const) || external {
                return self.cursor.refuse("an initial value of a variable that is not .global or .const");
            }
            self.cursor.take();
            let count = self.initial(head.ty, &dimensions, 0, &mut init)?;
            if let Some(outer) = dimensions.first_mut().filter(|outer| **outer == 0) {
                *outer = count;
            }
        }
        let unsized_allowed = external || parameter;
        if dimensions.first() == Some(&0) && !unsized_allowed {
            return self.cursor.fail(place, &format!("{name} has no size and is not .extern"));
        }
        let elements = (!dimensions.is_empty()).then(|| dimensions.iter().product::<u64>() as usize);
        let unit = head.ty.bytes() as u64;
        let limit = if head.space == Space::Global { MAX_GLOBAL_BYTES } else { MAX_BYTES };
        if elements.unwrap_or(1) as u64 * unit > limit {
            return self.cursor.fail(place, &format!("{name} is larger than {limit} bytes"));
        }
        let align = head.align.unwrap_or(unit * head.vector.unwrap_or(1)) as usize;
        Ok(Variable { space: head.space, name, ty: head.ty, align, elements, external, init })
    }

    /// `[2][3]`; 0 for a first dimension without a number. No product of them passes `MAX_GLOBAL_BYTES`.
    fn dimensions(&mut self) -> Result<Vec<u64>> {
        let mut dimensions = Vec::new();
        let mut product = 1u64;
        while self.cursor.at(b'[') {
            let place = self.cursor.take();
            if dimensions.len() == MAX_DIMENSIONS {
                return self.cursor.fail(place, &format!("found more than {MAX_DIMENSIONS} dimensions"));
            }
            if dimensions.is_empty() && self.cursor.eat(b']') {
                dimensions.push(0);
                continue;
            }
            let count = self.cursor.count("a number of elements")?;
            product = product.saturating_mul(count);
            if count == 0 || product > MAX_GLOBAL_BYTES / 16 {
                return self.cursor.fail(place, &format!("found {count} elements, expected 1 to 2^36 in all"));
            }
            self.cursor.expect(b']')?;
            dimensions.push(count);
        }
        Ok(dimensions)
    }

    /// An initial value from element `at` on: braces for each dimension, in which missing elements are zero. Gives the
    /// number of values in the outer braces.
    fn initial(&mut self, ty: Type, dimensions: &[u64], at: u64, init: &mut Initial) -> Result<u64> {
        let Some((&count, inner)) = dimensions.split_first() else {
            self.element(ty, at * ty.bytes() as u64, init)?;
            return Ok(1);
        };
        let unit = inner.iter().product::<u64>();
        self.cursor.expect(b'{')?;
        let mut found = 0;
        while !self.cursor.at(b'}') {
            if found == count && count > 0 {
                return self.cursor.fail(self.cursor.token, &format!("found more initial values than {count}"));
            }
            self.initial(ty, inner, at + found * unit, init)?;
            found += 1;
            if !self.cursor.eat(b',') {
                break;
            }
            if self.cursor.at(b'}') {
                return self.cursor.expected("an initial value");
            }
        }
        self.cursor.expect(b'}')?;
        Ok(found)
    }

    fn element(&mut self, ty: Type, offset: u64, init: &mut Initial) -> Result<()> {
        if self.cursor.token.kind == TokenKind::Word {
            let (symbol, addend) = self.symbol(ty)?;
            init.addresses.push((offset, symbol, addend));
            return Ok(());
        }
        let place = self.cursor.token;
        let value = self.cursor.constant()?;
        let bits = match (value, ty) {
            (_, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 | Type::B128) => None,
            (Constant::Int(_), Type::F32 | Type::F64) => None,
            (Constant::Int(value), _) => Some(value as u64),
            (Constant::F32(bits), Type::F32 | Type::B32) => Some(bits as u64),
            (Constant::F32(bits), Type::F64 | Type::B64) => Some((f32::from_bits(bits) as f64).to_bits()),
            (Constant::F64(bits), Type::F32 | Type::B32) => Some((f64::from_bits(bits) as f32).to_bits() as u64),
            (Constant::F64(bits), Type::F64 | Type::B64) => Some(bits),
            _ => None,
        };
        let Some(bits) = bits else {
            return self.cursor.fail(place, &format!("found {value:?} as initial value of a variable of type {ty:?}"));
        };
        init.push(offset, &bits.to_le_bytes()[..ty.bytes()]);
        Ok(())
    }

    /// `name`, `name+4`, `generic(name)+4`.
    fn symbol(&mut self, ty: Type) -> Result<(String, i64)> {
        let place = self.cursor.token;
        let mut symbol = self.cursor.name("a variable's name")?;
        if self.cursor.at(b'(') && symbol != "generic" {
            return self.cursor.fail(place, &format!("{symbol}(…) in an initial value is not supported"));
        }
        if self.cursor.eat(b'(') {
            symbol = self.cursor.name("a variable's name")?;
            self.cursor.expect(b')')?;
        }
        if !matches!(ty, Type::U64 | Type::B64 | Type::S64 | Type::U32 | Type::B32 | Type::S32) {
            return self.cursor.fail(place, &format!("found an address as initial value of a variable of type {ty:?}"));
        }
        let addend = if self.cursor.eat(b'+') { self.cursor.integer("an offset")? } else { 0 };
        Ok((symbol.to_string(), addend))
    }
}

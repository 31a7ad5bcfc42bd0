//! What a PTX file says, as its parser leaves it: names are still names and opcodes still text.
//! (PTX ISA, "Syntax" and "Instruction statements".)

use std::sync::Arc;

/// A whole PTX file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Module {
    /// `.version`, such as (9, 0).
    pub version: (u32, u32),
    /// `.target`, such as `sm_80`.
    pub target: String,
    /// Variables declared outside functions: `.global`, `.const`, `.shared`.
    pub variables: Vec<Variable>,
    /// Kernels (`.entry`) and device functions (`.func`), bodies or declarations alone.
    pub functions: Vec<Function>,
    /// The table of `.file`: number and path, by rising number. It may stand at the end of the text.
    pub files: Vec<(u32, Arc<str>)>,
    /// Strings of `.section .debug_str`, by label: the `function_name` that an inlined `.loc` refers to.
    pub strings: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
    /// No space given: the address tells.
    Generic,
}

/// A register's or variable's fundamental type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Type {
    /// The type that a modifier such as `u32` (without the dot) names.
    pub fn parse(text: &str) -> Option<Type> {
        Some(match text {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    /// Bytes in memory; a predicate has none.
    pub fn bytes(self) -> usize {
        match self {
            Type::Pred => 0,
            Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 | Type::Bf16x2 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
        }
    }
}

/// `.global .align 4 .b8 name[12] = {…};`, also a parameter or a `.shared`, `.local` variable.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    pub space: Space,
    pub name: String,
    pub ty: Type,
    /// Bytes; the type's own when the text gives none.
    pub align: usize,
    /// Elements: `None` for a scalar, `Some(0)` for an unsized `.extern .shared` array.
    pub elements: Option<usize>,
    /// `.extern`: the size comes with the launch (shared memory).
    pub external: bool,
    pub init: Initial,
}

impl Variable {
    pub fn bytes(&self) -> usize {
        self.ty.bytes() * self.elements.unwrap_or(1)
    }
}

/// A variable's initial value. What it does not name is zero.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Initial {
    /// Bytes without a gap, and the offset in the variable at which they begin; in rising order.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// Addresses: the offset in the variable, the variable that is meant, and what is added to its address.
    pub addresses: Vec<(u64, String, i64)>,
}

impl Initial {
    /// Adds bytes behind all that are there.
    pub fn push(&mut self, offset: u64, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some((begin, piece)) if *begin + piece.len() as u64 == offset => piece.extend_from_slice(bytes),
            _ => self.pieces.push((offset, bytes.to_vec())),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    pub name: String,
    /// A kernel (`.entry`) or a device function (`.func`).
    pub entry: bool,
    /// `.extern .func` or a prototype: no body.
    pub body: Option<Vec<Statement>>,
    /// A device function's results, `(.param .b32 func_retval0)`.
    pub results: Vec<Variable>,
    pub params: Vec<Variable>,
    /// `.maxntid` (x, y, z), `.reqntid`, `.minnctapersm`, `.maxnreg`.
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
    /// Line of the PTX text.
    pub line: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `.reg .b32 %r<9>;` is one entry with `count: Some(9)` and the name `%r`; `.reg .pred p;` has none.
    Registers {
        ty: Type,
        name: String,
        count: Option<u32>,
    },
    Variable(Variable),
    Label(String),
    /// `{ … }`: registers, variables and labels declared inside hide outer ones of the same name.
    Scope(Vec<Statement>),
    /// `LABEL: .branchtargets A, B, C;`
    BranchTargets {
        name: String,
        targets: Vec<String>,
    },
    Instruction(Instruction),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// The word before the first dot: `ld`, `mma`, `bar`.
    pub opcode: String,
    /// What follows it, without dots: `["global", "nc", "v4", "f32"]`. `L2::128B` is one modifier.
    pub modifiers: Vec<String>,
    pub operands: Vec<Operand>,
    /// Line of the PTX text.
    pub line: u32,
    /// The `.loc` in force; shared by the instructions that follow it.
    pub source: Option<Arc<Location>>,
}

impl Instruction {
    /// Opcode and modifiers as written: `ld.global.nc.v4.f32`.
    pub fn form(&self) -> String {
        let mut form = self.opcode.clone();
        for modifier in &self.modifiers {
            form.push('.');
            form.push_str(modifier);
        }
        form
    }

    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Guard {
    pub predicate: String,
    pub negated: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// `%r1`, or any declared register; also `WARP_SZ` and special registers: `%tid.x`. A name of anything else
    /// (label, variable, function) is also left as a `Name`.
    Name(String),
    /// `!%p1`
    Not(String),
    /// `%p1|%p2`: two destinations. `_` stands for "none" in either place.
    Pair(String, String),
    /// An integer, two's complement.
    Int(i64),
    /// `0f3F800000`: a single's bits.
    F32(u32),
    /// `0d3FF0000000000000` or a decimal such as `1.5`: a double's bits.
    F64(u64),
    /// `[%rd1+16]`, `[name]`, `[name+4]`, `[4096]`.
    Address { base: Option<String>, offset: i64 },
    /// `{%r1, %r2}`; an element may be `_` (a `Name`) or an immediate.
    Vector(Vec<Operand>),
    /// `(a, b)` of a call: results and arguments.
    List(Vec<Operand>),
}

/// A `.loc` directive, with the chain of calls it was inlined through.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    pub file: u32,
    /// 0 where the compiler kept no line, such as for an instruction merged from several; `inlined_at` is then the last
    /// location before it that has one.
    pub line: u32,
    pub column: u32,
    /// `function_name $L__info_string0+4`: the label and the offset of the inlined function's name.
    pub function: Option<(String, u32)>,
    /// `inlined_at FILE LINE COLUMN`, which is itself the location of an earlier `.loc`.
    pub inlined_at: Option<Arc<Location>>,
}

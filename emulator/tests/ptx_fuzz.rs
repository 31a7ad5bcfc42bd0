//! Mutated texts: the parser gives a module or one line of error, and never panics.

use cuda_emulator::program::SourceLine;
use cuda_emulator::ptx::ast::{Module, Statement};
use cuda_emulator::ptx::{parse, source};

const SEEDS: [&str; 2] = [
    ".version 9.0
.target sm_80, debug
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b);
.const .align 4 .b8 table[16] = {0, 0x80, 0b11, 077, 1U};
.global .align 8 .u64 pointers[2][2] = {{generic(table)+4, 5}, {table}};
.global .f32 f[3] = {1.5, -2.5e-3, 0f3F800000};
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 .ptr .global .align 16 p, .param .align 8 .b8 s[24])
.maxntid 256, 1, 1
.minnctapersm 2
{
.local .align 8 .b8 __local_depot0[24];
.reg .pred %p<5>; .reg .b32 %r<40>, x; .reg .b64 %rd<38>;
.loc 1 27 3
.loc 2 7 3, function_name $L__info_string0, inlined_at 1 27 3
.loc 2 5 38, function_name $L__info_string1+2, inlined_at 2 7 3
ld.param.v4.u8 {%rs1, _, %rs3, 0}, [s+16]; // four
@!%p1 cp.async.cg.shared.global.L2::128B [%r1+-16], [%rd1], 16, (1+2)*4;
setp.lt.and.s32 %p1|%p2, %r1, ~0x10, !%p3;
{ // callseq 0, 0
.param .b32 param0;
st.param.f32 [param0+0], 0d3FF0000000000000;
call.uni (retval0), vprintf, (param0, param1);
}
.loc 1 0 3
T: .branchtargets A, B;
brx.idx %r1, T;
A: B: .pragma \"nounroll\";
P : .callprototype (.param .b32 _) _ (.param .b32 _);
/* done */ ret;
}
.file 1 \"/me/a.cu\"
.file 2 \"/me/\\303\\251 \\\"a\\\".cuh\"
.section .debug_str { $L__info_string0: .b8 97,98,0 $L__info_string1: .b8 97,0,98,0 }
.section .debug_info { .b32 .debug_abbrev, A-B .b64 A }
",
    ".version 7.0 .target sm_90a .func (.param .b64 r) f (.param .b64 a) .noreturn { { { mov.b32 {a, b}, c; } } ret; } .entry e { exit; }",
];

/// Pieces that mean something to the parser.
const PIECES: [&str; 40] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ";",
    ":",
    "=",
    "@",
    "!",
    "|",
    "+",
    "-",
    "~",
    "*",
    "\"",
    "\\",
    "/*",
    "*/",
    "//",
    ".",
    "%",
    "$",
    "0x",
    "0f",
    "1e",
    "18446744073709551615",
    "-9223372036854775808",
    ".reg",
    ".loc",
    ".global",
    ".b8",
    "é",
    "\0",
    "\n",
    "::",
];

struct Random(u64);

impl Random {
    /// A number below `limit` (xorshift64).
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Positions where tokens begin, near enough, and the end.
fn bounds(text: &str) -> Vec<usize> {
    let class = |c: char| if c.is_alphanumeric() || "_$%.".contains(c) { 0 } else { c as u32 };
    let mut bounds = vec![0];
    let mut previous = None;
    for (at, c) in text.char_indices() {
        if at > 0 && previous != Some(class(c)) {
            bounds.push(at);
        }
        previous = Some(class(c));
    }
    bounds.push(text.len());
    bounds
}

fn mutate(text: &str, random: &mut Random) -> String {
    let bounds = bounds(text);
    let token = |random: &mut Random| {
        let index = random.below(bounds.len() - 1);
        (bounds[index], bounds[(index + 1 + random.below(4)).min(bounds.len() - 1)])
    };
    let (begin, end) = token(random);
    let (first, last) = token(random);
    let piece = PIECES[random.below(PIECES.len())];
    match random.below(7) {
        0 => [&text[..begin], &text[end..]].concat(),
        1 => [&text[..end], &text[begin..]].concat(),
        2 => [&text[..begin], &text[first..last], &text[end..]].concat(),
        3 => [&text[..begin], piece, &text[end..]].concat(),
        4 => [&text[..begin], piece, &text[begin..]].concat(),
        5 => text[..begin].to_string(),
        _ => {
            let mut bytes = text.as_bytes().to_vec();
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

/// Every place of a module can be written.
fn write_places(module: &Module, statements: &[Statement]) -> usize {
    let place = |statement: &Statement| match statement {
        Statement::Scope(inner) => write_places(module, inner),
        Statement::Instruction(instruction) => {
            let frames =
                instruction.source.as_ref().map(|location| source::frames(module, location)).unwrap_or_default();
            let name = instruction.source.as_ref().and_then(|location| source::inlined_function(module, location));
            let line = SourceLine { frames: frames.into(), ptx_line: instruction.line, form: instruction.form() };
            line.to_string().len() + name.map_or(0, str::len)
        }
        _ => 0,
    };
    statements.iter().map(place).sum()
}

#[test]
fn the_seeds_parse() {
    for text in SEEDS {
        parse(text).unwrap();
    }
}

#[test]
fn mutated_texts_never_panic() {
    let seed = 0x5EED_2097_5EED;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let (mut parsed, mut refused) = (0, 0);
    for _ in 0..6000 {
        let mut text = SEEDS[random.below(SEEDS.len())].to_string();
        for _ in 0..1 + random.below(3) {
            text = mutate(&text, &mut random);
        }
        match parse(&text) {
            Ok(module) => {
                parsed += 1;
                for function in &module.functions {
                    write_places(&module, function.body.as_deref().unwrap_or(&[]));
                }
            }
            Err(fault) => {
                refused += 1;
                assert!(!fault.message.is_empty() && !fault.message.contains('\n'), "{fault}");
            }
        }
    }
    println!("{parsed} parsed, {refused} refused");
    assert!(parsed > 100 && refused > 100, "{parsed} parsed, {refused} refused");
}

#[test]
fn every_prefix_is_an_error_or_a_module() {
    for text in SEEDS {
        for (end, _) in text.char_indices() {
            if let Err(fault) = parse(&text[..end]) {
                assert!(!fault.message.contains('\n'), "{fault}");
            }
        }
    }
}

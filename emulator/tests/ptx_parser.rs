//! What the parser reads: texts written the way nvcc writes them, and what hand-written PTX adds.

mod growth;

use cuda_emulator::ptx::ast::{Function, Initial, Instruction, Module, Operand, Space, Statement, Type};
use cuda_emulator::ptx::parse;

const HEAD: &str = ".version 9.0\n.target sm_80\n.address_size 64\n";

fn module(items: &str) -> Module {
    parse(&format!("{HEAD}{items}")).unwrap_or_else(|fault| panic!("{fault}\n{items}"))
}

/// The body of a kernel with these statements.
fn body(statements: &str) -> Vec<Statement> {
    let module = module(&format!(".visible .entry k(.param .u64 k_param_0)\n{{\n{statements}\n}}\n"));
    module.functions.into_iter().next().and_then(|function| function.body).expect("the kernel has a body")
}

fn instruction(text: &str) -> Instruction {
    match body(text).into_iter().next() {
        Some(Statement::Instruction(instruction)) => instruction,
        other => panic!("{text}: found {other:?}"),
    }
}

fn name(text: &str) -> Operand {
    Operand::Name(text.to_string())
}

fn address(base: &str, offset: i64) -> Operand {
    Operand::Address { base: Some(base.to_string()), offset }
}

fn function<'m>(module: &'m Module, name: &str) -> &'m Function {
    module.functions.iter().find(|function| function.name == name).expect(name)
}

#[test]
fn a_whole_module() {
    let module = parse(
        "//\n// Compiled by hand\n//\n\n.version 7.8\n.target sm_90a, debug\n.address_size 64\n
\t// .globl\tscale
.extern .func  (.param .b32 func_retval0) vprintf
(
\t.param .b64 vprintf_param_0,
\t.param .b64 vprintf_param_1
)
;
.global .align 1 .b8 $str[4] = {104, 105, 10};
.visible .entry scale(
\t.param .u64 .ptr .global .align 16 scale_param_0,
\t.param .align 8 .b8 scale_param_1[24],
\t.param .f32 scale_param_2
)
.maxntid 256, 1, 1
.minnctapersm 2
{
\t.reg .pred \t%p<2>;
\t.reg .b32 \t%r<5>;
\t/* two
\t   lines */
\tmov.u32 \t%r1, %tid.x;
\t@%p1 bra \t$L__BB0_2;
$L__BB0_2:
\tret;

}
",
    )
    .unwrap();
    assert_eq!((module.version, module.target.as_str()), ((7, 8), "sm_90a"));
    let printf = function(&module, "vprintf");
    assert!(printf.body.is_none() && !printf.entry);
    assert_eq!((printf.results.len(), printf.params.len(), printf.line), (1, 2, 10));
    let scale = function(&module, "scale");
    assert!(scale.entry);
    assert_eq!((scale.max_threads, scale.min_blocks, scale.required_threads), (Some([256, 1, 1]), Some(2), None));
    let params: Vec<_> = scale.params.iter().map(|p| (p.name.as_str(), p.ty, p.align, p.elements, p.bytes())).collect();
    assert_eq!(
        params,
        [
            ("scale_param_0", Type::U64, 8, None, 8),
            ("scale_param_1", Type::B8, 8, Some(24), 24),
            ("scale_param_2", Type::F32, 4, None, 4)
        ]
    );
    assert_eq!(module.variables[0].bytes(), 4);
    let body = scale.body.as_ref().unwrap();
    assert_eq!(body[0], Statement::Registers { ty: Type::Pred, name: "%p".into(), count: Some(2) });
    let Statement::Instruction(mov) = &body[2] else { panic!("{body:?}") };
    assert_eq!((mov.form().as_str(), mov.line), ("mov.u32", 29));
    assert_eq!(mov.operands, [name("%r1"), name("%tid.x")]);
    assert_eq!(body[4], Statement::Label("$L__BB0_2".into()));
}

#[test]
fn operands_of_every_kind() {
    assert_eq!(instruction("ld.global.f32 %f1, [%rd1+16];").operands, [name("%f1"), address("%rd1", 16)]);
    assert_eq!(instruction("ld.global.f32 %f1, [%rd1+-16];").operands, [name("%f1"), address("%rd1", -16)]);
    assert_eq!(instruction("ld.shared.f32 %f1, [ smem + 0x10 ];").operands, [name("%f1"), address("smem", 16)]);
    assert_eq!(
        instruction("ld.shared.f32 %f1, [4096];").operands,
        [name("%f1"), Operand::Address { base: None, offset: 4096 }]
    );
    assert_eq!(
        instruction("setp.lt.and.s32 %p1|%p2, %r1, 0x10, !%p3;").operands,
        [Operand::Pair("%p1".into(), "%p2".into()), name("%r1"), Operand::Int(16), Operand::Not("%p3".into())]
    );
    assert_eq!(
        instruction("mov.b32 %r1, {0, %rs35};").operands,
        [name("%r1"), Operand::Vector(vec![Operand::Int(0), name("%rs35")])]
    );
    assert_eq!(
        instruction("fma.rn.f32 %f1, %f2, 0f3F800000, 1.5;").operands[2..],
        [Operand::F32(0x3F80_0000), Operand::F64(1.5f64.to_bits())]
    );
    assert_eq!(
        instruction("call.uni (retval0), \nfoo, \n(\nparam0, \nparam1\n);").operands,
        [Operand::List(vec![name("retval0")]), name("foo"), Operand::List(vec![name("param0"), name("param1")])]
    );
    assert_eq!(instruction("mov.u32 %r1, (1+2)*4;").operands[1], Operand::Int(12));
    assert_eq!(
        instruction("st.global.v2.f32 [%rd1], {%f1, _};").operands[1],
        Operand::Vector(vec![name("%f1"), name("_")])
    );
    assert!(instruction("ret;").operands.is_empty());
}

#[test]
fn forms_and_guards() {
    let copy = instruction("@!%p1 cp.async.cg.shared::cta.global.L2::128B [%r1], [%rd1], 16, %r2;");
    assert_eq!(copy.form(), "cp.async.cg.shared::cta.global.L2::128B");
    assert!(copy.has("L2::128B") && copy.has("shared::cta") && !copy.has("shared"));
    assert!(copy.guard.is_some_and(|guard| guard.negated && guard.predicate == "%p1"));
    let mma = instruction(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};",
    );
    assert_eq!((mma.opcode.as_str(), mma.modifiers.len(), mma.operands.len()), ("mma", 9, 4));
    assert_eq!(instruction("mov .u32 x, 1;").form(), "mov.u32");
}

#[test]
fn scopes_labels_and_tables() {
    let body = body(
        "{ .reg.b32 t<3>, u; .reg .pred q; @q bra L1; L1: }
        { // callseq 0, 0
        .param .b32 param0;
        .param .align 8 .b8 param1[24];
        }
        .shared .align 4 .b8 tile[1024];
        .pragma \"nounroll\";
        $L_table: .branchtargets $L_1, $L_2;
        prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _, .param .b64 _);
        A: B: ret;",
    );
    let Statement::Scope(assembly) = &body[0] else { panic!("{body:?}") };
    assert_eq!(assembly[0], Statement::Registers { ty: Type::B32, name: "t".into(), count: Some(3) });
    assert_eq!(assembly[1], Statement::Registers { ty: Type::B32, name: "u".into(), count: None });
    assert_eq!(assembly[4], Statement::Label("L1".into()));
    let Statement::Scope(call) = &body[1] else { panic!("{body:?}") };
    let Statement::Variable(param1) = &call[1] else { panic!("{call:?}") };
    assert_eq!((param1.space, param1.align, param1.bytes()), (Space::Param, 8, 24));
    let Statement::Variable(tile) = &body[2] else { panic!("{body:?}") };
    assert_eq!((tile.space, tile.elements), (Space::Shared, Some(1024)));
    assert_eq!(
        body[3],
        Statement::BranchTargets { name: "$L_table".into(), targets: vec!["$L_1".into(), "$L_2".into()] }
    );
    assert_eq!(body[4..6], [Statement::Label("A".into()), Statement::Label("B".into())]);
}

#[test]
fn initial_values() {
    let module = module(
        ".visible .global .align 4 .u32 count = 7;
        .global .align 8 .u64 pointer[3] = {generic(table)+4, 5, count};
        .const .align 4 .b8 bytes[6] = {1, 0xFF, -1};
        .global .f32 f[3] = {1.5, 0f40000000, 0d4008000000000000};
        .global .b32 bits = 1.5;
        .global .s16 pair[2][2] = {{1}, {2, -3}};
        .global .u32 unsized[] = {1, 2, 3};
        .global .u16 rows[][2] = {{1, 2}, {3}};
        .global .v2 .f64 vector = {1.0, 2.0};
        .global .u32 a, b[2] = {8, 9};",
    );
    let variable = |name: &str| module.variables.iter().find(|variable| variable.name == name).expect(name);
    let bytes = |bytes: &[u8]| Initial { pieces: vec![(0, bytes.to_vec())], addresses: vec![] };
    assert_eq!(variable("count").init, bytes(&[7, 0, 0, 0]));
    let addresses = vec![(0, "table".to_string(), 4), (16, "count".to_string(), 0)];
    assert_eq!(variable("pointer").init, Initial { pieces: vec![(8, 5u64.to_le_bytes().to_vec())], addresses });
    assert_eq!((variable("bytes").space, &variable("bytes").init), (Space::Const, &bytes(&[1, 255, 255])));
    let singles = [1.5f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
    assert_eq!(variable("f").init, bytes(&singles));
    assert_eq!(variable("bits").init, bytes(&singles[..4]));
    let pair = Initial { pieces: vec![(0, vec![1, 0]), (4, vec![2, 0, 0xFD, 0xFF])], addresses: vec![] };
    assert_eq!((variable("pair").elements, &variable("pair").init), (Some(4), &pair), "what is left out is zero");
    assert_eq!(variable("unsized").elements, Some(3));
    assert_eq!((variable("rows").elements, &variable("rows").init), (Some(4), &bytes(&[1, 0, 2, 0, 3, 0])));
    assert_eq!((variable("vector").elements, variable("vector").align), (Some(2), 16));
    assert_eq!((variable("a").elements, variable("b").elements), (None, Some(2)));
}

#[test]
fn linkage_and_repeated_names() {
    let module = module(
        ".extern .shared .align 16 .b8 smem[];
        .extern .global .u32 later;
        .visible .global .u32 later = 3;
        .func (.param .b32 r) f (.param .b32 x);
        .weak .func (.param .b32 r) f (.param .b32 x) { ret; }
        .func (.param .b32 r) f (.param .b32 x);
        .func noreturning () .noreturn { trap; }
        .entry bare .maxnreg 32 .reqntid 8, 8 .pragma \"nounroll\"; { ret; }
        .entry clustered() .explicitcluster .reqnctapercluster 2, 1, 1 .maxclusterrank 4 { ret; }",
    );
    let smem = &module.variables[0];
    assert_eq!((smem.external, smem.elements, smem.align, smem.bytes()), (true, Some(0), 16, 0));
    assert_eq!(module.variables.len(), 2);
    assert_eq!((module.variables[1].external, module.variables[1].init.pieces.len()), (false, 1));
    assert_eq!(module.functions.len(), 4);
    assert!(function(&module, "f").body.is_some());
    let bare = function(&module, "bare");
    assert_eq!((bare.max_registers, bare.required_threads), (Some(32), Some([8, 8, 1])));
}

#[test]
fn a_long_text_takes_linear_time() {
    let text = |lines: usize| {
        let mut text = String::from(".reg .b32 %r<9>;\n");
        for line in 0..lines {
            text += &format!(".loc 1 {line} 3\nL{line}: {{ add.s32 %r1, %r1, {line}; }} /* {line} */\n");
        }
        text
    };
    assert_eq!(body(&text(20_000)).len(), 40_001);
    growth::assert_linear(20_000, text, |text| body(&text));
}

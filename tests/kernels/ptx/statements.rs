//! Single statements against values that the PTX ISA gives, from text to result: one entry with all of them.

use std::sync::Arc;

use lossfeed_kernels::launch::Launch;

use super::faults::Fault;
use super::libraries::Libraries;
use crate::fiber::Fibers;
use crate::program::{Call, Machine, Program};

/// A statement that writes register 1 of its kind, and the bits it leaves in thread 0 of a warp.
const STATEMENTS: &[(&str, u64)] = &[
    ("add.s16 %rs1, -1, 2", 1),
    ("sub.s32 %r1, 0, 1", 0xffff_ffff),
    ("mul.wide.s32 %rd1, -2, 3", -6i64 as u64),
    ("mul.wide.u32 %rd1, -2, 3", 0x2_ffff_fffa),
    ("mad.wide.s32 %rd1, -2, 3, 5000000000", 4_999_999_994),
    ("mul.hi.u64 %rd1, -1, 2", 1),
    ("div.s32 %r1, -7, 2", -3i32 as u32 as u64),
    ("div.s32 %r1, -2147483648, -1", 0x8000_0000),
    ("rem.s32 %r1, -7, 2", 0xffff_ffff),
    ("max.u32 %r1, -1, 1", 0xffff_ffff),
    ("max.s32 %r1, -1, 1", 1),
    ("min.s32 %r1, -1, 1", 0xffff_ffff),
    // Counts are clamped to the width.
    ("shl.b32 %r1, 1, 32", 0),
    ("shl.b32 %r1, 1, 31", 0x8000_0000),
    ("shr.u32 %r1, -1, 33", 0),
    ("shr.s32 %r1, -4, 99", 0xffff_ffff),
    ("shr.s32 %r1, -4, 1", 0xffff_fffe),
    ("bfi.b32 %r1, 15, 0, 8, 2", 0x300),
    ("bfi.b32 %r1, -1, 5, 8, 0", 5),
    ("bfi.b64 %rd1, -1, 0, 32, 32", 0xffff_ffff_0000_0000),
    // The fourth bit of a selector spreads a byte's sign.
    ("prmt.b32 %r1, 128, 1, 36952", 0x0080_00ff),
    ("prmt.b32 %r1, 1144201745, -1, 12816", 0x4433_2211),
    ("popc.b64 %r1, -1", 64),
    ("popc.b32 %r1, 255", 8),
    // NaN: max takes the other; -0 is less than 0; an ordered comparison fails, an unordered one holds.
    ("max.f32 %f1, 0f7FC00000, 0f3F800000", 0x3f80_0000),
    ("max.f32 %f1, 0f80000000, 0f00000000", 0),
    ("max.f64 %fd1, 0d7FF8000000000000, 0d3FF0000000000000", 0x3ff0_0000_0000_0000),
    ("min.f64 %fd1, 0d0000000000000000, 0d8000000000000000", 0x8000_0000_0000_0000),
    ("sub.f32 %f1, 0f7F800000, 0f7F800000", 0x7fff_ffff),
    ("add.f32 %f1, 0fFFC00001, 0f3F800000", 0x7fff_ffff),
    ("mov.f32 %f1, 0fFFC00001", 0xffc0_0001),
    ("setp.lt.f32 %p1, 0f7FC00000, 0f3F800000", 0),
    ("setp.ltu.f32 %p1, 0f7FC00000, 0f3F800000", 1),
    ("setp.ne.f32 %p1, 0f7FC00000, 0f3F800000", 0),
    ("setp.neu.f32 %p1, 0f7FC00000, 0f3F800000", 1),
    ("setp.geu.f32 %p1, 0f3F800000, 0f40000000", 0),
    ("setp.num.f32 %p1, 0f3F800000, 0f7FC00000", 0),
    ("setp.lt.s32 %p1, -1, 1", 1),
    ("setp.lt.u32 %p1, -1, 1", 0),
    ("setp.lt.s64 %p1, -1, 1", 1),
    // A product's digits beyond a place are in the sum.
    ("fma.rn.f32 %f1, 0f3F800001, 0f3F800001, 0fBF800002", 0x2880_0000),
    ("fma.rn.f64 %fd1, 0d3FF0000000000001, 0d3FF0000000000001, 0dBFF0000000000002", 0x3970_0000_0000_0000),
    ("add.rz.f32 %f1, 0f3F800000, 0f33C00000", 0x3f80_0000),
    ("add.rz.f32 %f1, 0f3F800000, 0fB3000000", 0x3f7f_ffff),
    ("add.rz.f32 %f1, 0f7F7FFFFF, 0f7F7FFFFF", 0x7f7f_ffff),
    // Ties go to the even neighbour.
    ("cvt.rn.f16.f32 %rs1, 0f3F801000", 0x3c00),
    ("cvt.rn.f16.f32 %rs1, 0f3F803000", 0x3c02),
    ("cvt.rn.f16.f32 %rs1, 0f477FF000", 0x7c00),
    ("cvt.rn.f16.f32 %rs1, 0f33000001", 1),
    ("cvt.rn.f16.f32 %rs1, 0fFFC00000", 0x7fff),
    ("cvt.rn.bf16x2.f32 %r1, 0f3F808000, 0f3F818000", 0x3f80_3f82),
    ("cvt.rn.f16x2.f32 %r1, 0f3F800000, 0fC0000000", 0x3c00_c000),
    ("cvt.f32.f16 %f1, 1", 0x3380_0000),
    ("cvt.f32.f16 %f1, 64512", 0xff80_0000),
    ("max.f16x2 %r1, 2113945600, 1006632961", 0x3c00_4000),
    ("max.bf16x2 %r1, 1065385984, -1082130432", 0x3f80_0000),
    ("cvt.rni.f64.f64 %fd1, 0d4004000000000000", 0x4000_0000_0000_0000),
    ("cvt.rmi.f64.f64 %fd1, 0dBFE0000000000000", 0xbff0_0000_0000_0000),
    ("cvt.rzi.s32.f32 %r1, 0fCF800000", 0x8000_0000),
    ("cvt.rzi.s32.f32 %r1, 0f7FC00000", 0),
    ("cvt.rzi.u32.f32 %r1, 0fBF800000", 0),
    ("cvt.rni.s64.f64 %rd1, 0d4004000000000000", 2),
    ("cvt.s64.s32 %rd1, -1", u64::MAX),
    ("cvt.u64.u32 %rd1, -1", 0xffff_ffff),
    ("cvt.rn.f32.u32 %f1, -1", 0x4f80_0000),
    ("cvt.rn.f32.f64 %f1, 0d3FF0000010000000", 0x3f80_0000),
    ("mov.b64 {%r2, %r1}, 4294967297000", 0x3e8),
    ("mov.b32 %r1, {%rs2, %rs2}", 0x0007_0007),
    // Lane 0 of the warp, where register 2 holds the lane: beyond the segment's end it keeps its own.
    ("shfl.sync.bfly.b32 %r1|%p2, %r2, 16, 31, -1", 16),
    ("shfl.sync.bfly.b32 %r1|%p2, %r2, 16, 15, -1", 0),
    ("shfl.sync.idx.b32 %r1, %r2, 5, 31, -1", 5),
    ("shfl.sync.idx.b32 %r1, %r2, 13, 6175, -1", 5),
    ("shfl.sync.down.b32 %r1, %r2, 3, 31, -1", 3),
    ("shfl.sync.up.b32 %r1, %r2, 3, 0, -1", 0),
    ("shfl.sync.down.b32 %r1|%p1, %r2, 3, 2, -1", 0),
    ("vote.sync.ballot.b32 %r1, %p3, -1", 0xffff_fff8),
    // Memory: a small integer grows by its sign, vectors keep their order.
    ("ld.shared.s8 %r1, [shared]", 0xffff_ff80),
    ("ld.shared.u8 %r1, [shared]", 0x80),
    ("ld.shared.s32 %rd1, [shared+4]", 0xffff_ffff_8000_0001),
    ("ld.shared.v2.u16 {%rs2, %rs1}, [shared+4]", 0x8000),
    ("atom.shared.max.u32 %r1, [shared+4], 5", 0x8000_0001),
    // No error of the special functions moves what is exact.
    ("ex2.approx.f32 %f1, 0f00000000", 0x3f80_0000),
    ("ex2.approx.ftz.f32 %f1, 0fC2FE0000", 0),
    ("ex2.approx.f32 %f1, 0fFF800000", 0),
    ("lg2.approx.f32 %f1, 0f00000000", 0xff80_0000),
    ("rcp.approx.ftz.f64 %fd1, 0d0008000000000000", 0x7ff0_0000_0000_0000),
    ("rcp.approx.ftz.f64 %fd1, 0d7FF8000000000001", 0x7fff_ffff_0000_0000),
    ("div.approx.f32 %f1, 0f3F800000, 0f7F000001", 0),
];

/// Special functions: the statement, its correctly rounded result, the places that its document allows (of the upper
/// word, of `rcp.approx.ftz.f64`).
const SPECIAL: &[(&str, u64, i64)] = &[
    ("ex2.approx.f32 %f1, 0f3F000000", 0x3fb5_04f3, 2),
    ("ex2.approx.ftz.f32 %f1, 0fC1200000", 0x3a80_0000, 2),
    ("rcp.approx.f32 %f1, 0f40400000", 0x3eaa_aaab, 1),
    ("div.full.f32 %f1, 0f3F800000, 0f40400000", 0x3eaa_aaab, 2),
    ("sqrt.approx.f32 %f1, 0f40000000", 0x3fb5_04f3, 1),
    ("rsqrt.approx.f32 %f1, 0f40000000", 0x3f35_04f3, 1),
    // 3: 2^-22 of 1.58 is 3 places there.
    ("lg2.approx.f32 %f1, 0f40400000", 0x3fca_e00d, 3),
    ("rcp.approx.ftz.f64 %fd1, 0d4008000000000000", 0x3fd5_5555_0000_0000, 1 << 32),
];

/// The register that a statement writes, the type and bits of what is stored of it. (A predicate beside a shuffle's
/// value is not looked at.)
fn written(statement: &str) -> (&'static str, &'static str, u32) {
    let kinds = [("%r1", "u32", 32), ("%rs1", "u16", 16), ("%rd1", "u64", 64), ("%f1", "f32", 32), ("%fd1", "f64", 64)];
    kinds.into_iter().find(|(register, _, _)| statement.contains(register)).unwrap_or(("%p1", "u32", 32))
}

/// One entry that runs all statements, in their order, and stores each result.
fn text() -> String {
    let statements = STATEMENTS.iter().map(|s| s.0).chain(SPECIAL.iter().map(|s| s.0));
    let mut text = ".version 8.8\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 shared[];\n\
        .visible .entry statements(\n.param .align 8 .b8 out[8]\n)\n{\n.reg .pred %p<5>;\n.reg .b16 %rs<3>;\n\
        .reg .b32 %r<3>;\n.reg .b64 %rd<4>;\n.reg .f32 %f<2>;\n.reg .f64 %fd<2>;\nld.param.u64 %rd3, [out];\n\
        mov.u32 %r2, %tid.x;\nsetp.ne.s32 %p4, %r2, 0;\nsetp.gt.u32 %p3, %r2, 2;\nmov.u16 %rs2, 7;\n\
        mov.u32 %r1, 128;\nst.shared.u32 [shared], %r1;\nmov.u32 %r1, -2147483647;\nst.shared.u32 [shared+4], %r1;\n\
        mov.u32 %r1, 0;\nst.shared.u32 [shared+8], %r1;\nbar.sync 0;\n"
        .to_owned();
    for (number, statement) in statements.enumerate() {
        let (kind, of, _) = written(statement);
        text += &format!("{statement};\n");
        let kind = if kind == "%p1" {
            text += "selp.u32 %r1, 1, 0, %p1;\n";
            "%r1"
        } else {
            kind
        };
        text += &format!("@!%p4 st.global.{of} [%rd3+{}], {kind};\nmov.u32 %r2, %tid.x;\n", 8 * number);
    }
    text + "ret;\n}\n"
}

pub(super) fn libraries(faults: &'static [Fault]) -> Option<Arc<Libraries>> {
    Libraries::new(text(), faults).map(Arc::new)
}

/// All statements give what their documents say; an error names those that do not. Special functions are `sign` times
/// as far off as they may be.
pub(super) fn check(machine: &mut Fibers, sign: i64) -> Result<(), String> {
    let mut program = Program::default();
    let out = program.output(8 * (STATEMENTS.len() + SPECIAL.len()));
    let launch = Launch { kernel: "statements", grid: 1, block: (32, 1), shared_bytes: 16 };
    program.calls.push(Call { launch, arguments: out.to_ne_bytes().to_vec() });
    let results: Vec<u64> = machine.run(&program, 0)?.column(out, STATEMENTS.len() + SPECIAL.len());
    let moved = SPECIAL.iter().map(|&(statement, exact, places)| (statement, exact.wrapping_add_signed(sign * places)));
    let wrong: Vec<String> = (results.iter().zip(STATEMENTS.iter().copied().chain(moved)))
        .filter(|&(&result, (statement, expected))| (result ^ expected) << (64 - written(statement).2) != 0)
        .map(|(result, (statement, expected))| format!("{statement}: {result:x}, not {expected:x}"))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:#?}")) }
}

#[test]
fn single_statements_do_what_their_documents_say() {
    let Some(libraries) = libraries(&[]) else { return };
    for (error, sign) in [("none", 0), ("above", 1), ("below", -1)] {
        let Some(mut machine) = Fibers::translated(libraries.clone(), error, 0) else { return };
        check(&mut machine, sign).unwrap_or_else(|wrong| panic!("{error}: {wrong}"));
    }
}

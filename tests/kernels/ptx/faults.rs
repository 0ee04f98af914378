//! Faults that are planted into the translation, so that the checks are known to find them.

/// What a faulty statement does instead.
pub(crate) enum Change {
    /// Computes this; an atomic: this operation.
    Expression(&'static str),
    /// Has this for its operand of that number (a shuffle's).
    Operand(usize, &'static str),
    /// Runs where its guard says not to.
    Sense,
    /// Moves one byte of each lane.
    Narrow,
    /// Moves a vector's lanes in the opposite order.
    Lanes,
    /// Does nothing.
    Nothing,
}

use Change::{Expression, Lanes, Narrow, Nothing, Operand, Sense};

/// All statements whose opcode begins so, changed so.
pub(crate) struct Fault {
    pub(crate) opcode: &'static str,
    pub(crate) change: Change,
}

impl Fault {
    pub(crate) fn applies(&self, opcode: &str, guarded: bool) -> bool {
        opcode.starts_with(self.opcode) && (guarded || !matches!(self.change, Sense))
    }
}

const fn fault(opcode: &'static str, change: Change) -> Fault {
    Fault { opcode, change }
}

pub(crate) const FAULTS: &[Fault] = &[
    // Rounded twice.
    fault("fma.rn.f32", Expression("$a * $b + $c")),
    fault("fma.rn.f64", Expression("$a * $b + $c")),
    // To nearest.
    fault("add.rz.f32", Expression("$a + $b")),
    fault("div.rn.f32", Expression("$a * (1 / $b)")),
    fault("div.rn.f64", Expression("$a / (f32)$b")),
    fault("sqrt.rn.f32", Expression("std::sqrt($a) * 1.0001f")),
    fault("sqrt.rn.f64", Expression("(f32)std::sqrt($a)")),
    fault("ex2.approx.ftz.f32", Expression("ptx_ex2($a) * 1.0001f")),
    // As with .ftz.
    fault("ex2.approx.f32", Expression("flushed(ptx_ex2(flushed($a)))")),
    // Too gross for the steps that follow.
    fault("rcp.approx.ftz.f64", Expression("(f32)ptx_rcp($a) * 0.9")),
    // NaN wins.
    fault("max.f32", Expression("$a != $a ? $a : larger($b, $a)")),
    fault("max.f64", Expression("$a != $a ? $a : larger($b, $a)")),
    fault("abs.f32", Expression("raw= $a")),
    fault("neg.f32", Expression("raw= $a")),
    // NaN compares the other way.
    fault("setp.lt.f32", Expression("pred= !($a >= $b)")),
    fault("setp.lt.f64", Expression("pred= !($a >= $b)")),
    fault("setp.eq.f32", Expression("pred= !($a < $b || $a > $b)")),
    fault("setp.geu.f32", Expression("pred= $a >= $b")),
    fault("setp.leu.f32", Expression("pred= $a <= $b")),
    fault("setp.neu.f32", Expression("pred= $a < $b || $a > $b")),
    fault("setp.nan.f32", Expression("pred= false")),
    fault("setp.num.f32", Expression("pred= true")),
    // Without signs, or with them.
    fault("setp.lt.s32", Expression("pred= $a:u32 < $b:u32")),
    fault("setp.lt.s64", Expression("pred= $a:u64 < $b:u64")),
    fault("setp.lt.u32", Expression("pred= $a:s32 < $b:s32")),
    fault("setp.ge.u32", Expression("pred= $a > $b")),
    fault("setp.gt.u32", Expression("pred= $a >= $b")),
    fault("setp.eq.s64", Expression("pred= $a:u32 == $b:u32")),
    fault("mul.wide.s32", Expression("W= (u64)$a:u32 * $b:u32")),
    fault("mul.wide.u32", Expression("W= (s64)$a:s32 * $b:s32")),
    fault("cvt.s64.s32", Expression("$a:u32")),
    fault("cvt.u64.u32", Expression("$a:u16")),
    fault("shr.s32", Expression("shr($a:u32, $b:u32)")),
    fault("shr.u32", Expression("shr($a:s32, $b:u32)")),
    fault("shr.u64", Expression("shr($a:u32, $b:u32)")),
    fault("mul.hi.u64", Expression("$a * $b")),
    fault("mul.lo.s64", Expression("(s64)$a:s32 * $b:s32")),
    fault("mad.lo.s32", Expression("$a:U * $b:U")),
    fault("div.u32", Expression("quotient($a, $b) + 1")),
    fault("rem.u32", Expression("quotient($a, $b)")),
    fault("min.s32", Expression("$a:u32 < $b:u32 ? $a : $b")),
    fault("min.u32", Expression("$a < $b ? $b : $a")),
    fault("max.u32", Expression("$a:s32 > $b:s32 ? $a : $b")),
    // Towards zero; to nearest.
    fault("cvt.rn.f16.f32", Expression("to_half(real(bits($a) & 0xffffe000u))")),
    fault("cvt.rn.bf16x2.f32", Expression("bits($a) & 0xffff0000u | bits($b) >> 16")),
    fault("cvt.rzi.s32.f32", Expression("to_integer<s32>(std::rint($a))")),
    fault("cvt.rni.s64.f64", Expression("to_integer<s64>(std::trunc($a))")),
    // Without subnormal numbers.
    fault("cvt.f32.f16", Expression("from_half($a & 0x7c00 ? $a : 0)")),
    fault("selp.b32", Expression("raw= $c:pred ? $b : $a")),
    fault("selp.f32", Expression("raw= $c:pred ? $b : $a")),
    fault("and.pred", Expression("pred= $a | $b")),
    fault("or.pred", Expression("pred= $a & $b")),
    fault("xor.b32", Expression("$a | $b")),
    fault("not.b32", Expression("$a")),
    fault("prmt.b32", Expression("prmt($b, $a, $c)")),
    fault("bfi.b64", Expression("bfi($b, $a, $c:u32, $d:u32)")),
    fault("popc.b32", Expression("u32= $a != 0")),
    fault("vote.sync.ballot", Expression("ballot(!$a:pred, $b)")),
    // Half a warp; the neighbour alone.
    fault("shfl.sync", Operand(2, "15")),
    fault("shfl.sync", Operand(1, "1")),
    fault("bar.sync", Nothing),
    fault("bra", Sense),
    fault("atom.global.add", Expression("exch")),
    fault("atom.global.min", Expression("max")),
    fault("atom.global.max", Expression("min")),
    fault("atom.global.cas", Expression("exch")),
    fault("atom.shared.add", Expression("exch")),
    fault("atom.shared.min", Expression("max")),
    fault("ld.global.nc.u16", Narrow),
    fault("ld.global.nc.f32", Narrow),
    fault("ld.global.nc.v4", Lanes),
    fault("ld.shared.v4", Lanes),
    fault("ld.shared.u32", Narrow),
    fault("ld.param.u32", Narrow),
    fault("ld.volatile.global", Narrow),
    fault("st.shared.v4", Lanes),
    fault("st.shared.f32", Nothing),
    fault("st.global.u16", Narrow),
    fault("st.global.u64", Narrow),
    fault("st.global.cs.v4", Lanes),
    fault("st.global.f32", Nothing),
];

//! What each PTX instruction computes, as a C++ expression; `ptx.h` has the functions.
//!
//! `$a` … `$d` are the operands in the instruction's (last) type, `$a:u32` one in another type, `$a:U` in the unsigned
//! type of that width, `$a:W` in the type of twice its width. In front of an expression may stand its result's type, if
//! it is not the instruction's: `pred=`, `u32=`, `W=`; `raw=`: a NaN keeps its bits.

const INTEGERS: &str = "u16 s16 u32 s32 u64 s64";
const REALS: &str = "f32 f64";
const BITS: &str = "b16 b32 b64";

/// Opcode without types, the types it is known for, expression.
const TABLE: &[(&str, &str, &str)] = &[
    ("add", INTEGERS, "$a:U + $b:U"),
    ("sub", INTEGERS, "$a:U - $b:U"),
    ("mul.lo", INTEGERS, "1u * $a:U * $b:U"),
    ("mad.lo", INTEGERS, "1u * $a:U * $b:U + $c:U"),
    ("mul.hi", "u32 s32 u64", "mul_hi($a, $b)"),
    ("mul.wide", "u16 s16 u32 s32", "W= $a:W * $b:W"),
    ("mad.wide", "u16 s16 u32 s32", "W= $a:W * $b:W + $c:W"),
    ("div", INTEGERS, "quotient($a, $b)"),
    ("rem", INTEGERS, "remainder($a, $b)"),
    ("neg", "s16 s32 s64", "0u - $a:U"),
    ("abs", "s16 s32 s64", "$a < 0 ? 0u - $a:U : $a:U"),
    ("min", INTEGERS, "$a < $b ? $a : $b"),
    ("max", INTEGERS, "$a > $b ? $a : $b"),
    ("add", REALS, "$a + $b"),
    ("add.rn", REALS, "$a + $b"),
    ("add.rz", "f32", "add_rz($a, $b)"),
    ("sub", REALS, "$a - $b"),
    ("sub.rn", REALS, "$a - $b"),
    ("mul", REALS, "$a * $b"),
    ("mul.rn", REALS, "$a * $b"),
    ("fma.rn", REALS, "std::fma($a, $b, $c)"),
    ("div.rn", REALS, "$a / $b"),
    ("rcp.rn", REALS, "1 / $a"),
    ("sqrt.rn", REALS, "std::sqrt($a)"),
    ("abs", REALS, "raw= std::fabs($a)"),
    ("neg", REALS, "raw= -$a"),
    ("min", REALS, "smaller($a, $b)"),
    ("max", REALS, "larger($a, $b)"),
    ("max", "f16x2", "u32= larger_halves($a, $b)"),
    ("max", "bf16x2", "u32= larger_bfloats($a, $b)"),
    ("ex2.approx", "f32", "ptx_ex2($a)"),
    ("ex2.approx.ftz", "f32", "flushed(ptx_ex2(flushed($a)))"),
    ("lg2.approx", "f32", "ptx_lg2($a)"),
    ("lg2.approx.ftz", "f32", "flushed(ptx_lg2(flushed($a)))"),
    ("rcp.approx", "f32", "ptx_div(1, $a, 1)"),
    ("rcp.approx.ftz", "f32", "flushed(ptx_div(1, flushed($a), 1))"),
    ("rcp.approx.ftz", "f64", "ptx_rcp($a)"),
    ("div.approx", "f32", "large($b) ? $a * 0.0f : ptx_div($a, $b, 2)"),
    ("div.full", "f32", "ptx_div($a, $b, 2)"),
    ("sqrt.approx", "f32", "ptx_sqrt($a)"),
    ("sqrt.approx.ftz", "f32", "flushed(ptx_sqrt(flushed($a)))"),
    ("rsqrt.approx", "f32", "ptx_rsqrt($a)"),
    ("rsqrt.approx.ftz", "f32", "flushed(ptx_rsqrt(flushed($a)))"),
    ("and", BITS, "$a & $b"),
    ("or", BITS, "$a | $b"),
    ("xor", BITS, "$a ^ $b"),
    ("not", BITS, "~$a"),
    ("and", "pred", "$a & $b"),
    ("or", "pred", "$a | $b"),
    ("xor", "pred", "$a ^ $b"),
    ("not", "pred", "!$a"),
    ("shl", BITS, "shl($a, $b:u32)"),
    ("shr", "b16 b32 b64 u16 u32 u64 s16 s32 s64", "shr($a, $b:u32)"),
    ("popc", "b32 b64", "u32= __builtin_popcountll($a)"),
    ("prmt", "b32", "prmt($a, $b, $c)"),
    ("bfi", "b32 b64", "bfi($a, $b, $c:u32, $d:u32)"),
    ("selp", "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", "raw= $c:pred ? $a : $b"),
    ("setp.eq", "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", "pred= $a == $b"),
    ("setp.ne", "b16 b32 b64 u16 u32 u64 s16 s32 s64", "pred= $a != $b"),
    ("setp.lt", "u16 u32 u64 s16 s32 s64 f32 f64", "pred= $a < $b"),
    ("setp.le", "u16 u32 u64 s16 s32 s64 f32 f64", "pred= $a <= $b"),
    ("setp.gt", "u16 u32 u64 s16 s32 s64 f32 f64", "pred= $a > $b"),
    ("setp.ge", "u16 u32 u64 s16 s32 s64 f32 f64", "pred= $a >= $b"),
    ("setp.ne", REALS, "pred= $a < $b || $a > $b"),
    ("setp.equ", REALS, "pred= !($a < $b || $a > $b)"),
    ("setp.neu", REALS, "pred= !($a == $b)"),
    ("setp.ltu", REALS, "pred= !($a >= $b)"),
    ("setp.leu", REALS, "pred= !($a > $b)"),
    ("setp.gtu", REALS, "pred= !($a <= $b)"),
    ("setp.geu", REALS, "pred= !($a < $b)"),
    ("setp.num", REALS, "pred= $a == $a && $b == $b"),
    ("setp.nan", REALS, "pred= $a != $a || $b != $b"),
    ("vote.sync.ballot", "b32", "ballot($a:pred, $b)"),
    ("cvta.to.global", "u64", "$a"),
    ("cvta.global", "u64", "$a"),
    ("cvta.to.shared", "u64", "$a - SHARED"),
    ("cvta.shared", "u64", "SHARED + (u32)$a"),
];

pub(crate) const TYPES: &str = "pred b8 u8 s8 b16 u16 s16 f16 bf16 b32 u32 s32 f32 f16x2 bf16x2 b64 u64 s64 f64";

pub(crate) fn real(of: &str) -> bool {
    REALS.split(' ').any(|t| t == of)
}

/// The integer of that width in C++.
pub(crate) fn unsigned(of: &str) -> &'static str {
    match of {
        "pred" => "bool",
        "b8" | "u8" | "s8" => "u8",
        "b16" | "u16" | "s16" | "f16" | "bf16" => "u16",
        "b64" | "u64" | "s64" | "f64" => "u64",
        _ => "u32",
    }
}

/// The type that holds a value of PTX's type in C++.
pub(crate) fn holder(of: &str) -> &str {
    if of.starts_with('s') || real(of) { of } else { unsigned(of) }
}

/// The type of twice the width.
pub(crate) fn wide(of: &str) -> &'static str {
    match of {
        "u16" => "u32",
        "s16" => "s32",
        "u32" => "u64",
        _ => "s64",
    }
}

/// Splits an opcode into its name and the types at its end.
pub(crate) fn typed(opcode: &str) -> (String, Vec<&str>) {
    let mut words: Vec<&str> = opcode.split('.').collect();
    let is_type = |word: &&str| TYPES.split(' ').any(|t| t == *word);
    let types = words.split_off(words.len() - words.iter().rev().take_while(|w| is_type(w)).count());
    (words.join("."), types)
}

/// The expression of an opcode.
pub(crate) fn expression(opcode: &str) -> Option<String> {
    let (name, types) = typed(opcode);
    match (name.split_once('.').map_or((&*name, ""), |(n, m)| (n, m)), &types[..]) {
        (("cvt", rounding), &[to, from]) => conversion(rounding, to, from),
        (_, &[of]) => {
            let found = TABLE.iter().find(|(n, types, _)| *n == name && types.split(' ').any(|t| t == of));
            found.map(|row| row.2.to_owned())
        }
        _ => None,
    }
}

/// `cvt`: its result has the first type.
fn conversion(rounding: &str, to: &str, from: &str) -> Option<String> {
    let whole = |rounding| match rounding {
        "rni" => Some("std::rint"),
        "rzi" => Some("std::trunc"),
        "rmi" => Some("std::floor"),
        "rpi" => Some("std::ceil"),
        _ => None,
    };
    let half = |of: &str| of.contains("16") && of.contains('f');
    Some(match (rounding, to, from) {
        ("", "f32", "f16") => "from_half($a)".to_owned(),
        ("", "f32", "bf16") => "from_bfloat($a)".to_owned(),
        ("rn", "f16", "f32") => "to_half($a)".to_owned(),
        ("rn", "bf16", "f32") => "to_bfloat($a)".to_owned(),
        // The first operand is the upper half.
        ("rn", "f16x2", "f32") => "(u32)to_half($a) << 16 | to_half($b)".to_owned(),
        ("rn", "bf16x2", "f32") => "(u32)to_bfloat($a) << 16 | to_bfloat($b)".to_owned(),
        _ if half(to) || half(from) => return None,
        ("", "f64", "f32") | ("rn", "f32", "f64") => format!("({to})$a"),
        (_, to, from) if real(to) && to == from => format!("{}($a)", whole(rounding)?),
        (_, to, from) if real(from) && !real(to) => format!("to_integer<{}>({}($a))", holder(to), whole(rounding)?),
        ("rn", to, from) if real(to) && !real(from) => format!("({to})$a"),
        ("", to, from) if !real(to) && !real(from) => format!("({})$a", holder(to)),
        _ => return None,
    })
}

//! Batches of logits, ordinary and nasty, from a few numbers that proptest can shrink.

use half::{bf16, f16};
use lossfeed_kernels::{Dtype, Rows};
use proptest::prelude::*;

/// A batch that owns its bytes.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) dtype: Dtype,
    pub(crate) rows: usize,
    pub(crate) classes: usize,
    pub(crate) row_stride: usize,
    /// Bytes in front of the first logit.
    pub(crate) offset_bytes: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) targets: Vec<i64>,
    pub(crate) ignore_index: i64,
}

impl Case {
    pub(crate) fn view(&self) -> Rows<'_> {
        Rows::new(&self.bytes[self.offset_bytes..], self.dtype, self.rows, self.classes, self.row_stride).unwrap()
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { dtype, rows, classes, row_stride, offset_bytes, ignore_index, .. } = self;
        write!(f, "{rows} x {classes} {dtype:?}, stride {row_stride}, offset {offset_bytes} B, ignore {ignore_index}")
    }
}

/// What the logits look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flavour {
    /// Spread over a few units, as a network in training.
    Plain,
    /// One class far ahead, as a trained network: losses of 1e-10 and below.
    Confident,
    /// Few distinct values, many ties, both zeros.
    Tied,
    /// Exponents far beyond the range of exp().
    Huge,
    /// NaN, ±∞, masked classes, whole rows of them.
    Nasty,
    /// Far from 0 together, by this much (what a dtype does not reach is brought into its range): a softmax does not
    /// depend on it, a log-sum-exp is rounded to its last place. Differences below that place vanish: all but a few
    /// rows of 1e30 are equal.
    Far(f64),
}

/// Offsets of [`Flavour::Far`]: within f32's integers, beyond its sixteenths, and where even a double holds no
/// difference.
pub(crate) const OFFSETS: [f64; 8] = [1e3, -1e3, 1e6, -1e6, 1e30, -1e30, 3e38, -3e38];

/// A small generator, so that a case is its seed.
pub(crate) struct Lcg(u64);

impl Lcg {
    pub(crate) fn new(seed: u64) -> Lcg {
        Lcg(seed ^ 0x9e37_79b9_7f4a_7c15)
    }
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.next() % n
    }
    /// Uniform in −1..1.
    pub(crate) fn unit(&mut self) -> f64 {
        f64::from(self.next()) / f64::from(1u32 << 30) - 1.0
    }
}

fn logit(flavour: Flavour, row_mood: u32, rng: &mut Lcg) -> f64 {
    match flavour {
        Flavour::Plain => 4.0 * rng.unit() + 2.0 * rng.unit(),
        Flavour::Confident => 2.0 * rng.unit() - if rng.below(50) == 0 { 0.0 } else { 25.0 },
        Flavour::Tied => [0.0, -0.0, 1.0, -1.0, 0.5][rng.below(5) as usize],
        Flavour::Huge => 3.0e4 * rng.unit(),
        Flavour::Far(offset) => match (row_mood, rng.below(8)) {
            (0, 0) => offset * (1.0 - 1e-6),
            (1, 0) => f64::NEG_INFINITY,
            _ => offset + 4.0 * rng.unit() + 2.0 * rng.unit(),
        },
        Flavour::Nasty => match (row_mood, rng.below(40)) {
            (0, _) => f64::NEG_INFINITY,
            (1, 0) => f64::NAN,
            (2, 0) => f64::INFINITY,
            (3, 0..30) => f64::NEG_INFINITY,
            (4, _) => -0.0,
            (5, 0..20) => f64::NAN,
            _ => 3.0 * rng.unit(),
        },
    }
}

/// Appends `value` in the case's dtype.
pub(crate) fn push(bytes: &mut Vec<u8>, dtype: Dtype, value: f64) {
    match dtype {
        Dtype::F16 => bytes.extend(f16::from_f64(value).to_bits().to_ne_bytes()),
        Dtype::BF16 => bytes.extend(bf16::from_f64(value).to_bits().to_ne_bytes()),
        Dtype::F32 => bytes.extend((value as f32).to_ne_bytes()),
        Dtype::F64 => bytes.extend(value.to_ne_bytes()),
    }
}

/// One of the plain cases or of those far from 0, by a number.
pub(crate) fn plain_or_far(number: usize) -> Flavour {
    OFFSETS.get(number % (OFFSETS.len() + 2)).map_or(Flavour::Plain, |&offset| Flavour::Far(offset))
}

/// A case of exactly this shape.
pub(crate) fn case(
    dtype: Dtype,
    rows: usize,
    classes: usize,
    row_stride: usize,
    offset_bytes: usize,
    flavour: Flavour,
    seed: u64,
) -> Case {
    let mut rng = Lcg::new(seed);
    // Rows of f16 end at 65,504.
    let flavour = match (flavour, dtype) {
        (Flavour::Far(offset), Dtype::F16) => Flavour::Far(offset.clamp(-6e4, 6e4)),
        _ => flavour,
    };
    let elements = if rows == 0 { 0 } else { (rows - 1) * row_stride + classes };
    let mut bytes = vec![0xff; offset_bytes];
    for i in 0..elements {
        // The mood changes with the row; with overlapping rows it hardly matters where.
        let row = i / row_stride.max(1);
        let mood = (row as u32).wrapping_mul(2_654_435_761) >> 29;
        push(&mut bytes, dtype, logit(flavour, mood, &mut rng));
    }
    let ignore_index = [-100, 0, classes as i64 - 1, -1][rng.below(4) as usize];
    let target = |rng: &mut Lcg| if rng.below(8) == 0 { ignore_index } else { i64::from(rng.below(classes as u32)) };
    let targets = (0..rows).map(|_| target(&mut rng)).collect();
    Case { dtype, rows, classes, row_stride, offset_bytes, bytes, targets, ignore_index }
}

pub(crate) fn any_dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}

pub(crate) fn any_flavour() -> impl Strategy<Value = Flavour> {
    let near = [Flavour::Plain, Flavour::Confident, Flavour::Tied, Flavour::Huge, Flavour::Nasty];
    prop_oneof![5 => prop::sample::select(near.to_vec()), 3 => prop::sample::select(OFFSETS.map(Flavour::Far).to_vec())]
}

/// Any batch of up to `max_rows` rows, at offsets of `unit` elements' worth of bytes (0: any byte).
pub(crate) fn any_case(
    max_rows: usize,
    classes: impl Strategy<Value = usize>,
    aligned: bool,
) -> impl Strategy<Value = Case> {
    (any_dtype(), 0..=max_rows, classes, 0..4usize, 0..16usize, any_flavour(), any::<u64>()).prop_map(
        move |(dtype, rows, classes, stride, offset, flavour, seed)| {
            let row_stride = [classes, classes + 1, classes + 7, 0][stride];
            let offset_bytes = if aligned { offset * dtype.bytes() } else { offset };
            case(dtype, rows, classes, row_stride, offset_bytes, flavour, seed)
        },
    )
}

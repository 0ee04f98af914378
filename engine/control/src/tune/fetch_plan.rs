//! Fetch plan: the ranges of shards that are read ahead of need, and their order.
//!
//! All samples that have room in the prefetch window can wait there for their turn. So those that are neighbours in a
//! shard come with one request of megabytes, whatever the order in which they are needed. A range leaps over headers
//! and padding, and over other samples only for 2 % of what it brings. The range with the sample that is needed first
//! is read first.
//!
//! There is no plan where samples have hardly any neighbours, or where the link is so slow that all ranges together
//! take seconds: then what is needed first must come first, by short requests.

/// Ranges must have so many samples in the mean: fewer save little and keep those that are needed first waiting.
const SAMPLES_MIN: usize = 8;
/// A range leaps over other samples for at most a fiftieth of a range's wanted bytes.
const LEAP_SHARE: u64 = 50;
/// All ranges together must come within this time.
const ALL_S: f64 = 3.0;
/// One call asks for the ranges that come within this time; then the link is known better.
const CALL_S: f64 = 0.5;
/// The first batch is asked for sample by sample if it is no more than this share of the samples ...
pub const DIRECT_SHARE: usize = 200;
/// ... and whatever it costs if its ranges take longer than this.
const WAIT_MAX_S: f64 = 1.0;

/// A sample's place in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// The shard.
    pub shard: u32,
    /// The first byte in it.
    pub offset: u64,
    /// Length.
    pub bytes: u32,
}

impl Spot {
    fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.bytes))
    }
}

/// Samples that one request brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The first byte in the shard.
    pub start: u64,
    /// The end in the shard (exclusive).
    pub end: u64,
    /// Positions of the samples, in the order of their offsets.
    pub samples: Vec<usize>,
    wanted_bytes: u64,
}

impl Range {
    /// The longest that begins with the first of `left`, which are positions in the order of their offsets.
    fn longest(spots: &[Spot], left: &[usize], shape: Shape) -> Option<Self> {
        let (&first, rest) = left.split_first()?;
        let spot = spots.get(first)?;
        let (start, mut end, mut wanted_bytes, mut leapt_bytes) = (spot.offset, spot.end(), u64::from(spot.bytes), 0);
        let (mut samples, mut whole) = (1, (end, wanted_bytes));
        for (n, next) in rest.iter().filter_map(|&at| spots.get(at)).enumerate() {
            let gap = next.offset.saturating_sub(end);
            leapt_bytes += if gap <= shape.framing_bytes { 0 } else { gap };
            wanted_bytes += u64::from(next.bytes);
            end = end.max(next.end());
            let too_long = end - start > shape.range_bytes || leapt_bytes * LEAP_SHARE > shape.range_bytes;
            if next.shard != spot.shard || too_long {
                break;
            }
            // What is leapt over early may be little beside what is still to come.
            if leapt_bytes * LEAP_SHARE <= wanted_bytes {
                (samples, whole) = (n + 2, (end, wanted_bytes));
            }
        }
        let (end, wanted_bytes) = whole;
        Some(Self { start, end, samples: left.get(..samples)?.to_vec(), wanted_bytes })
    }

    /// Length of the request.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    fn first(&self) -> usize {
        self.samples.iter().copied().min().unwrap_or(usize::MAX)
    }
}

/// Limits of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The most bytes of one; a longer sample is a range by itself.
    pub range_bytes: u64,
    /// A gap of so many bytes at most is read over, whatever is in it: headers and padding, or samples that cost less
    /// than a request.
    pub framing_bytes: u64,
}

/// A call that is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// A batch waits for so many samples, those that are needed first. 0: no batch is known to wait.
    pub first: usize,
    /// So many samples, those that are needed first, are asked for in any case.
    pub urgent: usize,
    /// The most memory that the call may take, answers in flight included.
    pub free_bytes: u64,
    /// The most bytes of one request.
    pub range_bytes: u64,
}

impl Ask {
    /// The first batch, sample by sample.
    pub fn first_alone(self) -> Plan {
        Plan { samples: (0..self.first).collect(), beside_bytes: 0, by_ranges: false }
    }
}

/// The samples that a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Positions of samples, ascending.
    pub samples: Vec<usize>,
    /// Memory that the call takes beside the samples: what is between them, and one range while it is taken apart.
    pub beside_bytes: u64,
    /// True: by ranges; else each sample by itself.
    pub by_ranges: bool,
}

/// The ranges that bring the samples at `spots`, which are given in the order of need. In the order of the sample in
/// each that is needed first.
pub fn ranges(spots: &[Spot], shape: Shape) -> Vec<Range> {
    let mut order: Vec<usize> = (0..spots.len()).collect();
    let key = |&at: &usize| spots.get(at).map(|spot| (spot.shard, spot.offset, at));
    order.sort_unstable_by_key(key);
    let (mut ranges, mut left) = (Vec::new(), order.as_slice());
    while let Some(range) = Range::longest(spots, left, shape) {
        left = left.get(range.samples.len()..).unwrap_or_default();
        ranges.push(range);
    }
    ranges.sort_by_cached_key(Range::first);
    ranges
}

/// Plans `call` for the samples at `spots`, which are given in the order of need and all have room, over a link
/// of `bytes_per_s`. `None`: ranges bring nothing here.
pub fn plan(spots: &[Spot], shape: Shape, call: Ask, bytes_per_s: f64) -> Option<Plan> {
    let ranges = ranges(spots, shape);
    let seconds = |ranges: &mut dyn Iterator<Item = &Range>| ranges.map(Range::bytes).sum::<u64>() as f64 / bytes_per_s;
    if ranges.len() * SAMPLES_MIN > spots.len() || seconds(&mut ranges.iter()) > ALL_S {
        return None;
    }
    let first = call.first.min(spots.len());
    let waits_s = seconds(&mut ranges.iter().filter(|range| range.first() < first));
    if waits_s > WAIT_MAX_S || (first > 0 && first * DIRECT_SHARE <= spots.len()) {
        return Some(Ask { first, ..call }.first_alone());
    }
    let (mut plan, mut bytes, mut longest) = (Plan { samples: Vec::new(), beside_bytes: 0, by_ranges: true }, 0, 0);
    for range in ranges {
        let now = bytes + range.bytes();
        let slow = bytes > 0 && now as f64 > CALL_S * bytes_per_s;
        if slow || now + longest.max(range.bytes()) > call.free_bytes {
            break;
        }
        (bytes, longest) = (now, longest.max(range.bytes()));
        plan.beside_bytes += range.bytes().saturating_sub(range.wanted_bytes);
        plan.samples.extend(range.samples);
    }
    plan.beside_bytes += longest;
    plan.samples.sort_unstable();
    (!plan.samples.is_empty()).then_some(plan)
}

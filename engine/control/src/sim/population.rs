//! Who there is at the end of a run, and who of them is in the cache.
//!
//! Scores and ages of samples are the run's, whatever the policy: they are counted once, and every policy's residents
//! are told by them.

use serde::Serialize;

use crate::types::SampleId;

/// Bars of the histogram of scores.
const BARS: usize = 20;
/// Without a score, or never delivered.
const NONE: u8 = u8::MAX;

/// How often values lie where.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Histogram {
    /// The bars' borders, one more than there are bars. The last bar has its upper border, all others have not.
    pub borders: Vec<f64>,
    /// By bar.
    pub counts: Vec<u64>,
}

/// The samples of a run at its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Population {
    /// The last score of every sample that has one.
    pub scores: Histogram,
    /// Requests since the last one of a sample, by powers of two: 0, 1, 2 to 3, 4 to 7, …
    pub ages: Histogram,
    /// Samples without a score.
    pub unscored: u64,
    #[serde(skip)]
    deciles: Vec<u8>,
    #[serde(skip)]
    age_bars: Vec<u8>,
}

/// The residents of a cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Composition {
    /// How many have a score of which so many tenths of all scored samples' are smaller: at place 9 the highest.
    pub score_deciles: [u64; 10],
    /// How many have no score.
    pub unscored: u64,
    /// By the bars of [`Population::ages`].
    pub ages: Vec<u64>,
}

/// How long ago samples were delivered, in requests.
#[derive(Debug, Clone, Default)]
pub struct Ages {
    /// Counted from 1; 0 if it never was.
    last: Vec<u64>,
    requests: u64,
}

impl Ages {
    /// Of ids `0..samples`, none of which was delivered.
    pub fn new(samples: usize) -> Self {
        Self { last: vec![0; samples], requests: 0 }
    }
    /// A request for `id`.
    pub fn meet(&mut self, id: SampleId) {
        self.requests += 1;
        self.last[id as usize] = self.requests;
    }
}

impl Population {
    /// Of all samples' last scores, by id (NaN: none), and their ages.
    pub fn new(scores: &[f32], ages: &Ages) -> Self {
        let age_bar = |&last: &u64| if last == 0 { NONE } else { bar_of_age(ages.requests - last) };
        let age_bars: Vec<u8> = ages.last.iter().map(age_bar).collect();
        let oldest = age_bars.iter().filter(|&&bar| bar != NONE).max().map_or(0, |&bar| bar as usize + 1);
        let mut ages = Histogram {
            borders: (0..=oldest).map(|bar| if bar == 0 { 0.0 } else { 2f64.powi(bar as i32 - 1) }).collect(),
            counts: vec![0; oldest],
        };
        age_bars.iter().filter(|&&bar| bar != NONE).for_each(|&bar| ages.counts[bar as usize] += 1);

        let mut sorted: Vec<f32> = scores.iter().copied().filter(|score| score.is_finite()).collect();
        sorted.sort_unstable_by(f32::total_cmp);
        let decile = |&score: &f32| {
            if !score.is_finite() {
                return NONE;
            }
            let below = sorted.partition_point(|&other| other < score);
            (below * 10 / sorted.len()) as u8
        };
        let deciles = scores.iter().map(decile).collect();
        let unscored = (scores.len() - sorted.len()) as u64;
        Self { scores: histogram(&sorted), ages, unscored, deciles, age_bars }
    }
    /// Samples there are.
    pub fn samples(&self) -> usize {
        self.deciles.len()
    }
    /// Some of them by score and age. Ids that there are not count as nothing.
    pub fn composition(&self, residents: impl Iterator<Item = SampleId>) -> Composition {
        let mut found = Composition { ages: vec![0; self.ages.counts.len()], ..Default::default() };
        for id in residents {
            match self.deciles.get(id as usize) {
                Some(&NONE) => found.unscored += 1,
                Some(&decile) => found.score_deciles[decile as usize] += 1,
                None => {}
            }
            let age = self.age_bars.get(id as usize).copied().unwrap_or(NONE);
            if let Some(bar) = found.ages.get_mut(age as usize) {
                *bar += 1;
            }
        }
        found
    }
}

fn bar_of_age(age: u64) -> u8 {
    (u64::BITS - age.leading_zeros()) as u8
}

/// Bars of equal width from the smallest to the largest; one bar if they are the same.
fn histogram(sorted: &[f32]) -> Histogram {
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else { return Histogram::default() };
    let (least, most) = (f64::from(least), f64::from(most));
    if least == most {
        return Histogram { borders: vec![least, most], counts: vec![sorted.len() as u64] };
    }
    let border = |bar: usize| least + (most - least) * bar as f64 / BARS as f64;
    let borders: Vec<f64> = (0..=BARS).map(border).collect();
    let below = |bar: usize| match bar {
        BARS => sorted.len(),
        bar => sorted.partition_point(|&score| f64::from(score) < borders[bar]),
    };
    let counts = (0..BARS).map(|bar| (below(bar + 1) - below(bar)) as u64).collect();
    Histogram { borders, counts }
}

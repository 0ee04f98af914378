//! What share of a job's reads the cache answers, by how much of its dataset is cached.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Hit ratio over bytes cached: the upper concave hull of what was measured, from (0, 0) on, flat behind the last
/// point.
///
/// The hull and not the points: a cache that is split into two parts in the right proportion, each for its share of the
/// samples, reaches every point of it (Beckmann and Sanchez, HPCA'15). It is also what makes a greedy division exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(f64, f64)>", into = "Vec<(f64, f64)>")]
pub struct HitCurve {
    /// Corners of the hull, the first at (0, 0); bytes and hit ratios rise.
    corners: Vec<(f64, f64)>,
}

impl HitCurve {
    /// A job that reads its dataset once an epoch, over a cache that evicts nobody before its use: cached / dataset.
    ///
    /// # Errors
    /// `Settings` if `dataset_bytes` is not a finite number above 0.
    pub fn uniform(dataset_bytes: f64) -> Result<Self> {
        Self::measured(&[(dataset_bytes, 1.0)])
    }

    /// The same for a size that was checked before.
    pub fn straight(dataset_bytes: f64) -> Self {
        Self { corners: vec![(0.0, 0.0), (dataset_bytes, 1.0)] }
    }

    /// Of measured points: (bytes cached, hit ratio), in any order.
    ///
    /// # Errors
    /// `Settings` for a size that is not a finite number above 0, or a hit ratio outside 0 to 1.
    pub fn measured(points: &[(f64, f64)]) -> Result<Self> {
        let mut sorted = vec![(0.0, 0.0)];
        for &(bytes, hits) in points {
            if !bytes.is_finite() || bytes < 0.0 || !(0.0..=1.0).contains(&hits) || (bytes == 0.0 && hits > 0.0) {
                return Err(Error::settings(format!(
                    "a hit ratio of {hits} with {bytes} bytes cached: give bytes above 0 and a ratio from 0 to 1"
                )));
            }
            sorted.push((bytes, hits));
        }
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut corners: Vec<(f64, f64)> = Vec::with_capacity(sorted.len());
        for point in sorted {
            if corners.last().is_some_and(|last| point.1 <= last.1) {
                continue; // more cache and no more hits: flat
            }
            // The corner before goes if it lies on or below the line to this point.
            while let [.., before, last] = corners[..] {
                if (last.1 - before.1) * (point.0 - before.0) > (point.1 - before.1) * (last.0 - before.0) {
                    break;
                }
                corners.pop();
            }
            // Of points with equal bytes the highest, which comes last.
            corners.pop_if(|last| last.0 == point.0 && last.0 > 0.0);
            corners.push(point);
        }
        Ok(Self { corners })
    }

    /// The hit ratio with so many bytes cached.
    pub fn at(&self, bytes: f64) -> f64 {
        let next = self.corners.partition_point(|corner| corner.0 <= bytes);
        let Some(&(from, low)) = next.checked_sub(1).and_then(|before| self.corners.get(before)) else { return 0.0 };
        match self.corners.get(next) {
            Some(&(to, high)) => low + (high - low) * (bytes - from) / (to - from),
            None => low,
        }
    }

    /// Its straight pieces: (from bytes, to bytes, hit ratio gained a byte), steepest first.
    pub fn pieces(&self) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
        self.corners.windows(2).map(|two| (two[0].0, two[1].0, (two[1].1 - two[0].1) / (two[1].0 - two[0].0)))
    }
}

impl TryFrom<Vec<(f64, f64)>> for HitCurve {
    type Error = Error;
    fn try_from(points: Vec<(f64, f64)>) -> Result<Self> {
        Self::measured(&points)
    }
}

impl From<HitCurve> for Vec<(f64, f64)> {
    fn from(curve: HitCurve) -> Self {
        curve.corners
    }
}

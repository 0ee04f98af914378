//! Requests for objects of various sizes, as traces of caches have them: no epochs, steps or losses.

use std::collections::HashMap;

use lossfeed_control::sim::{Rows, Trace, dense};
use lossfeed_control::{Error, Result};

/// Requests that are decided together. No request brings a score, so it makes no difference to what is counted.
const BATCH: usize = 256;

/// What such a trace does not say, and how often it was taken as something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Requests with another size than their object's first one, which counts.
    pub other_sizes: u64,
    /// Requests of size 0, which counts as 1.
    pub empty: u64,
}

/// Requests as they are read.
pub(super) struct ObjectRequests {
    rows_max: usize,
    objects: Vec<u64>,
    sizes: HashMap<u64, u32>,
    taken: Taken,
}

impl ObjectRequests {
    /// At most `rows_max` of them, and never more than 2³² − 2.
    pub(super) fn new(rows_max: usize) -> Self {
        let rows_max = rows_max.min(u32::MAX as usize - 1);
        Self { rows_max, objects: Vec::new(), sizes: HashMap::new(), taken: Taken::default() }
    }
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }
    /// The next request.
    ///
    /// # Errors
    /// `Unreadable` if there are more than were allowed.
    pub(super) fn add(&mut self, object: u64, size: u32) -> Result<()> {
        let rows_max = self.rows_max;
        if self.objects.len() == rows_max {
            return Err(Error::unreadable(format!("it has more than {rows_max} requests: replay a part of it")));
        }
        self.taken.empty += u64::from(size == 0);
        let size = size.max(1);
        self.taken.other_sizes += u64::from(*self.sizes.entry(object).or_insert(size) != size);
        self.objects.push(object);
        Ok(())
    }
    /// All of them as one epoch without scores; `sized`: whether their sizes were told.
    ///
    /// # Errors
    /// `Unreadable` if there is none.
    pub(super) fn trace(self, sized: bool) -> Result<(Trace, Taken)> {
        let Self { objects, sizes, taken, .. } = self;
        if objects.is_empty() {
            return Err(Error::unreadable("it is empty: there is nothing to replay"));
        }
        let (ids, distinct) = dense(&objects);
        drop(objects);
        let bytes = || distinct.iter().map(|object| sizes.get(object).copied().unwrap_or(1)).collect();
        let rows = Rows {
            starts: (0..ids.len()).step_by(BATCH).map(|row| row as u32).collect(),
            epochs: vec![0],
            losses: vec![f32::NAN; ids.len()],
            bytes: sized.then(bytes),
            samples: distinct.len(),
            ids,
        };
        Ok((Trace::of(rows), taken))
    }
}

//! An epoch's order, shown without beginning it.

use super::Engine;
use crate::control::Plan;
use crate::error::{Error, Result};
use std::sync::Arc;

impl Engine {
    /// Who comes when in the epoch under way, or in the one that starts next if none is: its draws, and the end of each
    /// batch among them. Nothing begins or changes by it. An order that is still to be drawn is shown as it would be
    /// drawn now: samplers that go by scores draw another one if scores come first. Of an epoch that other numbers of
    /// ranks began, only what they left is shown: batches before it are empty. Any thread; it takes as long as drawing
    /// an epoch.
    ///
    /// # Errors
    /// `Usage` where nobody knows yet: under a sampler that decides batch by batch, and where the caller brings the order
    /// ([`crate::sampler::Given`]) of an epoch that has not begun. Also if the engine is closed, or another process's.
    pub fn plan(&self) -> Result<Plan> {
        self.usable()?;
        if self.settings.sampler.buffer().is_some() {
            return Err(Error::usage(format!(
                "sampler={:?} decides each batch by the cache's content, so an epoch has no order to show",
                self.settings.sampler.name()
            )));
        }
        let clock = self.clock.lock();
        let is_known = clock.current.as_ref().is_some_and(|i| !i.stopped()) || clock.resume.is_some();
        if self.settings.sampler.is_by_node() && !is_known {
            return Err(Error::usage(
                "order=\"node\": the node cache gives an epoch's order when it begins: begin one, and look then",
            ));
        }
        if let Some(current) = clock.current.as_ref().filter(|i| !i.stopped()) {
            return Ok(current.plan().clone());
        }
        let epoch = clock.next_epoch;
        let restored = clock.resume.as_ref().filter(|c| c.header.epoch == epoch);
        let (order, cut) = match restored.map(|c| self.restored_plan(c)).transpose()? {
            Some((Some(order), cut)) => (Arc::new(order), cut),
            _ => self.drawn(epoch)?,
        };
        Ok(Plan { epoch, order, cut, behind: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer_tests::{dataset, settings};
    use super::*;
    use crate::error::ErrorKind;
    use crate::loader::Next;
    use crate::sampler::{Echo, Given, Importance, SamplerSettings, Uniform};
    use std::time::Duration;

    fn shown(engine: &Engine) -> Vec<Vec<u32>> {
        let plan = engine.plan().unwrap();
        (0..plan.len()).map(|number| plan.order.ids[plan.range(number)].to_vec()).collect()
    }

    fn take(engine: &Engine, iteration: u64, most: usize) -> Vec<Vec<u32>> {
        let mut seen = Vec::new();
        while seen.len() < most {
            match engine.next_batch(iteration, Duration::from_secs(20)).unwrap() {
                Next::Batch(batch) => seen.push(batch.ticket.ids.to_vec()),
                Next::End => break,
                Next::Pending => panic!("nothing came"),
            }
        }
        seen
    }

    #[test]
    fn what_is_shown_is_what_comes_before_in_and_after_a_pass() {
        for sampler in
            [SamplerSettings::Uniform(Uniform::default()), SamplerSettings::Importance(Importance::default())]
        {
            let engine = Engine::new(dataset(), settings(sampler, 0)).unwrap();
            for epoch in 0..3 {
                let before = shown(&engine);
                assert_eq!(shown(&engine), before, "looking changes nothing");
                let iteration = engine.start_epoch().unwrap();
                let mut seen = take(&engine, iteration, 2);
                assert_eq!(shown(&engine), before, "the epoch under way");
                seen.extend(take(&engine, iteration, usize::MAX));
                assert_eq!(seen, before);
                assert_eq!(engine.plan().unwrap().epoch, epoch + 1);
            }
            let again = shown(&engine);
            engine.set_epoch(7).unwrap();
            assert_ne!(shown(&engine), again);
        }
    }

    #[test]
    fn what_was_left_of_a_restored_epoch_is_shown_in_its_own_order() {
        let given = || Engine::new(dataset(), settings(SamplerSettings::Given(Given { batches: true }), 0)).unwrap();
        let (first, resumed) = (given(), given());
        let iteration = first.start_given(&[3, 1, 2, 0], Some(&[1, 4])).unwrap();
        assert_eq!(take(&first, iteration, 1), [[3]]);
        resumed.load_state(&first.state().unwrap()).unwrap();
        assert_eq!(shown(&resumed), [vec![3], vec![1, 2, 0]]);
        assert_eq!(take(&resumed, resumed.start_epoch().unwrap(), 9), [[1, 2, 0]]);
    }

    #[test]
    fn an_order_that_nobody_knows_is_refused() {
        let engine = Engine::new(dataset(), settings(SamplerSettings::Given(Given::default()), 0)).unwrap();
        assert_eq!(engine.plan().unwrap_err().kind(), ErrorKind::Usage);
        let echo = SamplerSettings::Echo(Echo { lag: 16, ..Echo::default() });
        let engine = Engine::new(dataset(), settings(echo, 0)).unwrap();
        assert!(engine.plan().unwrap_err().to_string().contains("decides each batch"));
        engine.close();
        assert_eq!(engine.plan().unwrap_err().kind(), ErrorKind::Usage);
    }
}

//! The engine behind a candle training loop: batches as tensors, the loss, and the scores' way home.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Error, Result, Tensor};
use lossfeed::Engine;
use lossfeed::loader::{Next, Ticket};
use lossfeed::scoring::Measured;
use lossfeed_sync::Mutex;

use crate::loss::weighted_cross_entropy;
use crate::{Batch, Options, Scores, sample_scores};

/// Batches whose scores may be on their way from a GPU; beyond it the oldest are dropped and counted.
const AWAY_MAX: usize = 64;
/// One look at the engine; a pass waits as many times as it takes.
const PATIENCE: Duration = Duration::from_secs(1);

/// An engine as candle's training loops use it.
///
/// Scores on the CPU are credited at once. Scores on a GPU are credited by a later call, when the pass that measures
/// them has ended; no training step waits for one. [`Loader::flush`] waits for all of them.
///
/// The engine's own `device` is `cpu` here, whatever candle's is: candle copies to the device itself.
pub struct Loader {
    engine: Arc<Engine>,
    device: Device,
    away: Mutex<Away>,
}

#[derive(Default)]
struct Away {
    batches: VecDeque<(Ticket, Scores)>,
    dropped: u64,
}

impl Loader {
    /// Batches of `engine` on `device`.
    pub fn new(engine: Arc<Engine>, device: Device) -> Self {
        Self { engine, device, away: Mutex::default() }
    }

    /// The engine, for its state, its statistics and its beliefs.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Batches whose scores were dropped because too many were on their way.
    pub fn dropped(&self) -> u64 {
        self.away.lock().dropped
    }

    /// Starts the next epoch (`engine().set_epoch` chooses it); a pass under way ends.
    ///
    /// # Errors
    /// What the engine says, a closed one for instance.
    pub fn epoch(&self) -> Result<Epoch<'_>> {
        Ok(Epoch { loader: self, iteration: self.engine.start_epoch().map_err(Error::wrap)?, over: false })
    }

    /// [`crate::cross_entropy`] of a batch's logits against its own targets, (rows) int64, each row's loss multiplied
    /// by its weight. The scores go home by themselves, to exactly the samples of the batch.
    ///
    /// # Errors
    /// As [`crate::cross_entropy`]; a batch of another loader; on CUDA also a bad target of an earlier batch.
    pub fn cross_entropy(&self, logits: &Tensor, batch: &Batch, options: &Options) -> Result<Tensor> {
        let (loss, scores) = weighted_cross_entropy(logits, &batch.target, Some(&batch.weight), options)?;
        self.send(batch, scores)?;
        Ok(loss)
    }

    /// Scores a batch beside a loss of yours.
    ///
    /// # Errors
    /// As [`Loader::cross_entropy`].
    pub fn score(&self, logits: &Tensor, batch: &Batch, options: &Options) -> Result<()> {
        let scores = sample_scores(logits, &batch.target, options)?;
        self.send(batch, scores)
    }

    /// Credits per-sample losses, (rows), of a loss that is no cross entropy. Waits for them where they are on a GPU.
    ///
    /// # Errors
    /// Losses that are not one float a row; a batch of another loader.
    pub fn score_losses(&self, losses: &Tensor, batch: &Batch) -> Result<()> {
        let losses = losses.detach().to_dtype(candle_core::DType::F32)?.to_vec1::<f32>()?;
        self.engine.apply_losses(&batch.ticket, &losses).map_err(Error::wrap)?;
        Ok(())
    }

    /// Waits for the scores that are on their way and credits them; call it before reading beliefs.
    ///
    /// # Errors
    /// The first that a batch's scores meet; the others are credited by the next call.
    pub fn flush(&self) -> Result<()> {
        self.take_home(true)
    }

    fn send(&self, batch: &Batch, scores: Scores) -> Result<()> {
        {
            let mut away = self.away.lock();
            if away.batches.len() == AWAY_MAX {
                away.batches.pop_front();
                away.dropped += 1;
            }
            away.batches.push_back((batch.ticket.clone(), scores));
        }
        self.take_home(false)
    }

    /// Credits what is there, in order; `wait`: everything.
    fn take_home(&self, wait: bool) -> Result<()> {
        loop {
            let mut away = self.away.lock();
            let Some((_, scores)) = away.batches.front() else { return Ok(()) };
            if !wait && !scores.is_ready()? {
                return Ok(());
            }
            let Some((ticket, scores)) = away.batches.pop_front() else { return Ok(()) };
            drop(away);
            let s = scores.to_host()?.into_f32();
            let measured =
                Measured { loss: &s.loss, grad_norm: Some(&s.grad_norm), entropy: Some(&s.entropy), count: &s.count };
            self.engine.apply_scores(&ticket, &measured).map_err(Error::wrap)?;
        }
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("device", &self.device.location()).finish_non_exhaustive()
    }
}

/// One pass over an epoch: an iterator of batches. Dropping it ends the pass.
#[derive(Debug)]
pub struct Epoch<'a> {
    loader: &'a Loader,
    iteration: u64,
    over: bool,
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let found = loop {
            match self.loader.engine.next_batch(self.iteration, PATIENCE) {
                Ok(Next::Pending) => {}
                Ok(Next::End) => break None,
                Ok(Next::Batch(batch)) => break Some(Batch::new(&batch, &self.loader.device)),
                Err(error) => break Some(Err(Error::wrap(error))),
            }
        };
        self.over = !matches!(found, Some(Ok(_)));
        found
    }
}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        self.loader.engine.abandon(self.iteration);
    }
}

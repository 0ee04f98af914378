//! The engine as Python holds it: every call leaves the interpreter lock, every wait looks for signals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lossfeed::Error;
use lossfeed::engine::{Courier as CoreCourier, Engine as Core, ScoreMailbox, refusal};
use lossfeed::sampler::Neighbours;
use lossfeed::scoring::Measured;
use lossfeed::settings::Settings;
use lossfeed_kernels::rank;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::batch::Ticket;
use crate::buffer::{Buffer, Input};
use crate::courier::Courier;
use crate::errors::{outside, raise};
use crate::mailbox::Mailbox;
use crate::process::Process;
use crate::source::Source;

/// Longest wait before signals are looked at.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// (sample id, name, reason).
type BadSample = (u32, String, String);

/// The scores of a batch, copied out of Python's buffers.
struct Columns {
    loss: Vec<f32>,
    grad_norm: Option<Vec<f32>>,
    entropy: Option<Vec<f32>>,
    count: Option<Vec<i32>>,
}

impl Columns {
    fn get(
        loss: &Bound<'_, PyAny>,
        grad_norm: Option<Bound<'_, PyAny>>,
        entropy: Option<Bound<'_, PyAny>>,
        count: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let floats =
            |object: Option<Bound<'_, PyAny>>| object.map(|o| Ok::<_, PyErr>(Input::get(&o)?.to_vec())).transpose();
        let count = count.map(|o| Ok::<_, PyErr>(Input::get(&o)?.to_vec())).transpose()?;
        Ok(Self { loss: Input::get(loss)?.to_vec(), grad_norm: floats(grad_norm)?, entropy: floats(entropy)?, count })
    }

    fn with<T>(&self, credit: impl FnOnce(&Measured<'_>) -> T) -> T {
        let counted: Vec<i32>;
        let count = match &self.count {
            Some(count) => count,
            None => {
                counted = rank::counts(&self.loss);
                &counted
            }
        };
        let (grad_norm, entropy) = (self.grad_norm.as_deref(), self.entropy.as_deref());
        credit(&Measured { loss: &self.loss, grad_norm, entropy, count })
    }
}

/// The proposal of a rank that cannot take part in an exchange, and says why.
#[pyfunction]
pub(crate) fn exchange_refusal(rank: u32, problem: &str) -> String {
    refusal(rank, problem)
}

/// One rank's engine.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Engine {
    core: Arc<Core>,
    home: Process,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.home.leak_elsewhere(&self.core);
    }
}

#[pymethods]
impl Engine {
    /// `settings` is the engine's `Settings` as JSON.
    #[new]
    fn new(py: Python<'_>, source: &Source, settings: &str) -> PyResult<Self> {
        let settings: Settings =
            serde_json::from_str(settings).map_err(|e| raise(Error::settings(format!("settings: {e}"))))?;
        let dataset = source.dataset.clone();
        let core = outside(py, || Core::new(dataset, settings))?;
        Ok(Self { core: Arc::new(core), home: Process::this() })
    }

    /// Batches an epoch, the same on every rank.
    fn batches_per_epoch(&self, py: Python<'_>) -> PyResult<usize> {
        outside(py, || Ok(self.core.batches_per_epoch()))
    }

    /// Bytes of one batch slot.
    fn slot_bytes(&self) -> usize {
        self.core.layout().total_bytes()
    }

    /// The policy, the score and the sampler in force: (policy, score, smoothing, sampler).
    fn describe(&self) -> (String, &'static str, f32, &'static str) {
        let (settings, score) = (self.core.settings(), self.core.score_kind().name());
        (settings.policy_name().to_owned(), score, settings.smoothing_weight(), settings.sampler.name())
    }

    /// Labels of neighbours where sampler="auto" looked at them: "mixed" or "alike".
    fn neighbours(&self) -> Option<&'static str> {
        match self.core.neighbours() {
            Neighbours::Unknown => None,
            Neighbours::Mixed => Some("mixed"),
            Neighbours::Alike => Some("alike"),
        }
    }

    /// The training loop reads weights: a sampler that was left to choose draws by score from the next epoch on.
    fn weights_are_read(&self) {
        self.core.weights_are_read();
    }

    /// The way batches take to the GPU, and what each of those measured costs: (path, gather µs, copy µs).
    fn copy_path(&self) -> (&'static str, Vec<(&'static str, f64, f64)>) {
        let choice = self.core.copy_choice();
        let costs = choice.measured.iter().map(|cost| (cost.path.name(), cost.gather_us, cost.copy_us));
        (choice.path.name(), costs.collect())
    }

    /// A Python dataset is read by so many processes; 0: by threads of this one.
    fn read_by(&self, processes: u64) {
        self.core.read_by(processes);
    }

    /// Chooses the epoch that starts next.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        outside(py, || self.core.set_epoch(epoch))
    }

    /// The epoch under way, or the next one.
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        outside(py, || Ok(self.core.epoch()))
    }

    /// Ids (int64) of the next epoch, drawn in proportion to float64 weights, one a sample.
    fn draw_weighted(&self, py: Python<'_>, weights: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let weights = Input::get(weights)?.to_vec::<f64>();
        outside(py, || self.core.draw_weighted(&weights)).map(Buffer::from_vec)
    }

    /// Whether the next epoch goes on with the order of a state that was loaded.
    fn has_order(&self, py: Python<'_>) -> PyResult<bool> {
        outside(py, || self.core.has_order())
    }

    /// Who comes when, in the epoch under way or else the next one: int64 ids, and the int64 end of each batch among them.
    fn plan(&self, py: Python<'_>) -> PyResult<(Buffer, Buffer)> {
        let plan = outside(py, || self.core.plan())?;
        let ends: Vec<i64> = (0..plan.len()).map(|number| plan.range(number).end as i64).collect();
        let ids: Vec<i64> = plan.order.ids.iter().map(|&id| i64::from(id)).collect();
        Ok((Buffer::from_vec(ids), Buffer::from_vec(ends)))
    }

    /// Loader threads; 0: the calling thread prepares each batch.
    fn workers(&self) -> usize {
        self.core.workers()
    }

    /// Sets what the cache may hold; answers the bytes of memory that went back to the system.
    fn resize_cache(&self, py: Python<'_>, bytes: u64) -> PyResult<u64> {
        outside(py, || self.core.resize_cache(bytes))
    }

    /// The run's seed; None while it is open.
    fn seed(&self) -> Option<u64> {
        self.core.seed()
    }

    /// Sets a seed that was left open.
    fn settle_seed(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        outside(py, || self.core.settle_seed(seed))
    }

    /// Ends the pass under way; what this rank brings to an exchange: its proposal, and its news as little-endian words.
    fn begin_exchange<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyBytes>)> {
        let (proposal, words) = outside(py, || self.core.begin_exchange())?;
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        Ok((proposal, PyBytes::new(py, &bytes)))
    }

    /// Looks at the proposals of all ranks, in any order: whether there is something to exchange.
    fn agree(&self, py: Python<'_>, proposals: Vec<String>) -> PyResult<bool> {
        outside(py, || Ok(self.core.agree(&proposals)?.is_some()))
    }

    /// Puts together the news of all ranks, in the order of the proposals, which they have agreed on.
    fn end_exchange(&self, py: Python<'_>, proposals: Vec<String>, news: Vec<PyBackedBytes>) -> PyResult<()> {
        let words = |bytes: &PyBackedBytes| bytes.as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes).collect();
        let words: Vec<Vec<u32>> = news.iter().map(words).collect();
        outside(py, || match self.core.agree(&proposals)? {
            Some(agreed) => self.core.end_exchange(&agreed, &words),
            None => Ok(()),
        })
    }

    /// Credits a batch's scores: float32 loss, grad_norm, entropy and int32 rank counts. The latter three may be
    /// None: the first two were not measured then, and the ranks are counted here. Returns how many samples were
    /// scored; 0 if the batch had been scored before.
    fn apply_scores(
        &self,
        py: Python<'_>,
        ticket: &Ticket,
        loss: &Bound<'_, PyAny>,
        grad_norm: Option<Bound<'_, PyAny>>,
        entropy: Option<Bound<'_, PyAny>>,
        count: Option<Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let columns = Columns::get(loss, grad_norm, entropy, count)?;
        outside(py, || columns.with(|measured| self.core.apply_scores(&ticket.0, measured)))
    }

    /// Credits scores to samples by their ids (int64), a row each; columns as for `apply_scores`.
    fn apply_scores_to_ids(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        loss: &Bound<'_, PyAny>,
        grad_norm: Option<Bound<'_, PyAny>>,
        entropy: Option<Bound<'_, PyAny>>,
        count: Option<Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let ids = Input::get(ids)?.to_vec::<i64>();
        let columns = Columns::get(loss, grad_norm, entropy, count)?;
        outside(py, || columns.with(|measured| self.core.apply_scores_to_ids(&ids, measured)))
    }

    /// A mailbox on CUDA device `ordinal` for batches of at most `rows_max` rows, `slots` (a power of two) on their
    /// way at most: what kernels mail to it is credited to this engine.
    #[pyo3(signature = (ordinal, rows_max, slots=16))]
    fn mailbox(&self, py: Python<'_>, ordinal: usize, rows_max: usize, slots: usize) -> PyResult<Mailbox> {
        self.same_process()?;
        outside(py, || ScoreMailbox::open(&self.core, ordinal, rows_max, slots)).map(Mailbox::new)
    }

    /// What takes this engine's batches to its GPU.
    fn courier(&self, py: Python<'_>) -> PyResult<Courier> {
        self.same_process()?;
        outside(py, || CoreCourier::of(&self.core)).map(|courier| Courier(Arc::new(courier)))
    }

    /// float32[N]: what is believed about every sample now; NaN = unseen.
    fn importance(&self, py: Python<'_>) -> PyResult<Buffer> {
        self.same_process()?;
        outside(py, || Ok(self.core.importance())).map(Buffer::from_vec)
    }

    /// All counters, gauges and ratios.
    fn stats(&self, py: Python<'_>) -> PyResult<Vec<(String, f64)>> {
        self.same_process()?;
        outside(py, || Ok(self.core.stats()))
    }

    /// What the epoch has delivered so far, as JSON.
    fn epoch_report(&self, py: Python<'_>) -> PyResult<String> {
        self.same_process()?;
        outside(py, || {
            let report = self.core.epoch_report();
            serde_json::to_string(&report).map_err(|e| Error::internal("a report cannot be written").because(e))
        })
    }

    /// The run's state, as of `held` batches ago: those were handed out, and whoever has them has not passed them on.
    fn state<'py>(&self, py: Python<'py>, held: usize) -> PyResult<Bound<'py, PyBytes>> {
        let state = outside(py, || self.core.state_held(held))?;
        Ok(PyBytes::new(py, &state))
    }

    /// Goes on from a state of one rank, or those of all; answers what is not delivered, in words.
    fn load_states(&self, py: Python<'_>, states: Vec<PyBackedBytes>) -> PyResult<Option<String>> {
        let states: Vec<&[u8]> = states.iter().map(|state| &**state).collect();
        outside(py, || self.core.load_states(&states))
    }

    /// What of the files of scores is damaged and not believed, in words.
    fn damaged_scores(&self) -> Option<&str> {
        self.core.damaged_scores()
    }

    /// Bad samples met so far.
    fn bad_samples(&self, py: Python<'_>) -> PyResult<Vec<BadSample>> {
        self.same_process()?;
        outside(py, || Ok(self.core.bad_samples().into_iter().map(|b| (b.id, b.name, b.reason)).collect()))
    }

    /// Ends everything and waits for the loader threads, `timeout_s` at most; None waits for ever. Twice is fine.
    /// Returns the threads that were left behind, each with what it has in hand. Ctrl-C ends the wait.
    fn close(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Vec<String>> {
        if !self.home.is_this() {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let limit = timeout_s.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX));
        loop {
            let patience = limit.map_or(PATIENCE, |l| PATIENCE.min(l.saturating_sub(started.elapsed())));
            let left = outside(py, || Ok(self.core.close_within(patience)))?;
            if left.is_empty() || limit.is_some_and(|l| started.elapsed() >= l) {
                return Ok(left);
            }
            py.check_signals()?;
        }
    }
}

impl Engine {
    pub(crate) fn core(&self) -> Arc<Core> {
        Arc::clone(&self.core)
    }

    /// For calls that the engine itself does not check: its locks may be held for ever in a forked child.
    fn same_process(&self) -> PyResult<()> {
        self.home.check("this loader")
    }
}

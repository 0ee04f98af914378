//! The loss hook on candle tensors: a differentiable cross entropy whose one read of the logits also scores the
//! samples, and a loader that takes the scores home.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use lossfeed_candle::{Options, cross_entropy};
//!
//! let logits = Var::new(&[[2.0f32, 1.0, 0.0], [0.0, 0.0, 3.0]], &Device::Cpu)?;
//! let targets = Tensor::new(&[0u32, 1], &Device::Cpu)?;
//! let (loss, scores) = cross_entropy(&logits, &targets, &Options::default())?;
//! let gradients = loss.backward()?;
//! assert!(gradients.get(&logits).is_some());
//! assert_eq!(scores.to_host()?.into_f32().correct, [1, 0]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! | you have | use |
//! | --- | --- |
//! | logits and targets, nothing else | [`cross_entropy`], [`sample_scores`] |
//! | a [`lossfeed::Engine`] that feeds the run | [`Loader`]: its batches as candle tensors, its loss, and scores credited to the samples delivered |
//!
//! The engine itself does not know this crate; `examples/train.rs` trains a small model with both.
//!
//! # Devices
//!
//! CPU tensors go through `lossfeed_kernels::fast`. Tensors on a CUDA device need the feature `cuda`: the kernels are
//! the PTX that `lossfeed_kernels` ships, loaded into candle's own context, so nothing of ours is compiled by nvcc.
//! candle's own kernels are, though: `candle-core/cuda` calls nvcc when it is built and links cudart, cuBLAS and
//! cuRAND, so that feature needs a CUDA toolkit. `.ci/candle-cuda` type-checks it without one, with an nvcc that only
//! makes empty files.
//!
//! # Errors
//!
//! Everything returns candle's `Result`. Our own errors ([`lossfeed::Error`], [`lossfeed_kernels::ScoreError`]) travel
//! in `candle_core::Error::Wrapped`.

mod batch;
#[cfg(feature = "cuda")]
mod cuda;
mod gradient;
mod loader;
mod loss;
mod op;
mod scores;
mod shape;

pub use batch::Batch;
pub use loader::{Epoch, Loader};
pub use loss::{Options, Reduction, cross_entropy, sample_scores};
pub use scores::Scores;

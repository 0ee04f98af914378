//! The arithmetic of lossfeed: what one read of the logits says about every sample of a batch.
//!
//! For row z (C logits) and target y, with p = softmax(z):
//!
//! | score | meaning |
//! | --- | --- |
//! | `loss` | lse(z) − z_y, the cross entropy (SHADE Eq. 3–4) |
//! | `max`, `log_sum` | lse(z) in two parts: max z, and ln Σ exp(z − max z) |
//! | `grad_norm` | √(Σp² − 2p_y + 1) = ‖p − onehot(y)‖, the gradient-norm bound of Katharopoulos & Fleuret (2018) and the EL2N score of Paul et al. (2021) |
//! | `entropy` | −Σ p ln p, in nats |
//! | `correct` | is y the argmax (the first maximum wins) |
//! | `count` | rank in the batch: #{k : loss_k < loss_i}, strictly, so ties are equal (SHADE Eq. 6) |
//! | `rank_score` | ln(count + b0) |
//!
//! Beside the scores, [`image`] makes tensors of pixels: crop, flip, normalise.
//!
//! The same contract is written three times: [`reference`] (plain, two passes, meant to be read), [`fast`] (the CPU
//! device's path: one read, SIMD-friendly, all cores) and `cuda/*.cu` (shipped as [`ptx`], launched as [`launch`]
//! says). The tests hold the last two to the first. Arithmetic is f32 for f16, bf16 and f32 logits and f64 for f64.
//!
//! ```
//! use lossfeed_kernels::{Dtype, Rows, fast};
//! let logits: Vec<u8> = [2.0f32, 1.0, 0.0, 0.0, 0.0, 3.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
//! let rows = Rows::new(&logits, Dtype::F32, 2, 3, 3)?;
//! let scores = fast::score(&rows, &[0, 1], -100, 10.0)?.into_f32();
//! assert_eq!(scores.correct, [1, 0]);
//! assert_eq!(scores.count, [0, 1]); // the second sample is the harder one
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rows without a score
//!
//! An *ignored* row (target = `ignore_index`) has loss 0, max, log_sum, grad_norm and entropy NaN, correct
//! [`NOT_SCORED`], count −1 and rank_score NaN. A row without a softmax (it holds a NaN or +∞, or nothing but −∞) has
//! NaN in all five and correct 0. A loss that is NaN or infinite (the target itself is masked to −∞) gets no rank:
//! count −1, rank_score NaN, and it does not enter anyone else's count.

mod element;
pub mod fast;
pub mod image;
pub mod launch;
mod objective;
pub mod ptx;
pub mod rank;
mod reals;
pub mod reference;
mod rows;
mod scores;

pub use objective::{AnyTerms, Objective, ObjectiveError, Terms, Upstream};
pub use reals::{Reals, Softmax};
pub use rows::{Dtype, Rows, ShapeError};
pub use scores::{AnyScores, NOT_SCORED, ScoreError, Scores};

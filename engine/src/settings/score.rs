//! The kinds of scores: the measurement that becomes a sample's importance.

use crate::error::{Error, Result};

/// A measurement that becomes importance; `scoring` makes its value of what was measured of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// The per-sample loss.
    Loss,
    /// √(Σp² − 2p_y + 1), the gradient's norm at the logits (Katharopoulos & Fleuret 2018).
    GradientNorm,
    /// The entropy of the prediction.
    Entropy,
    /// ln(rank count + 10), SHADE's in-batch rank score. Its name was `rank`.
    #[serde(alias = "rank")]
    BatchRank,
    /// The mean loss of the batch, one score for all of its samples: a control (BLS, arXiv 2604.04681).
    Batch,
}

/// A measurement of a batch that some losses come without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Bounds of the gradients' norms.
    GradientNorm,
    /// Entropies of the predictions.
    Entropy,
}

/// Every kind: the name that users type, as serde has it too, and the measurement it needs beyond losses.
const TABLE: [(ScoreKind, &str, Option<Column>); 5] = [
    (ScoreKind::Loss, "loss", None),
    (ScoreKind::GradientNorm, "gradient_norm", Some(Column::GradientNorm)),
    (ScoreKind::Entropy, "entropy", Some(Column::Entropy)),
    (ScoreKind::BatchRank, "batch_rank", None),
    (ScoreKind::Batch, "batch", None),
];

impl ScoreKind {
    fn row(self) -> (Self, &'static str, Option<Column>) {
        TABLE[self as usize]
    }

    /// The name users type.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The measurement that it needs beyond losses. A batch rank is one of losses.
    pub fn needs(self) -> Option<Column> {
        self.row().2
    }

    /// The inverse of [`ScoreKind::name`]; `rank`, which old states and score files say, is `batch_rank`.
    ///
    /// # Errors
    /// `Settings` for any other name.
    pub fn from_name(name: &str) -> Result<Self> {
        let name = if name == "rank" { Self::BatchRank.name() } else { name };
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| {
            let names = TABLE.map(|row| row.1).join(", ");
            Error::settings(format!("score {name:?} is unknown: use one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_kinds_in_their_order_under_the_names_that_states_say() {
        for (number, (kind, name, _)) in TABLE.into_iter().enumerate() {
            assert_eq!((kind as usize, kind.name(), ScoreKind::from_name(name).unwrap()), (number, name, kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("{name:?}"));
        }
        assert_eq!(ScoreKind::from_name("rank").unwrap(), ScoreKind::BatchRank);
        let refused = ScoreKind::from_name("hardness").unwrap_err().to_string();
        assert!(TABLE.iter().all(|row| refused.contains(row.1)), "{refused}");
    }
}

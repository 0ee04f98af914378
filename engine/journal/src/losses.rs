//! What a recorded run learned of its samples, as a trace: for runs that samplers draw anew.

use std::collections::HashMap;

use lossfeed_control::sim::{RecordedBatch, Trace};
use lossfeed_control::{Error, Result};

use crate::{Event, Recording, Scored};

/// What stands for a sample's loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// The loss.
    Loss,
    /// What the score table was told: the run had scores of its own, and no loss was seen.
    Score,
}

/// The batches of the run in the order in which they were decided, with the losses that came for them, whenever they
/// came. Samples that were delivered and not scored have none. An epoch that was left and begun again is two.
///
/// A sample of which no size is told is taken to have the mean size of the others.
///
/// # Errors
/// `Settings` if nothing was scored.
pub fn losses(recording: &Recording) -> Result<(Trace, Measured)> {
    let learned = || {
        recording
            .events
            .iter()
            .filter_map(|event| if let Event::Learn { rows, .. } = event { Some(rows) } else { None })
    };
    let any = |of: fn(&Scored) -> f32| learned().flatten().any(|row| of(row).is_finite());
    let (measured, of): (_, fn(&Scored) -> f32) = if any(|row| row.loss) {
        (Measured::Loss, |row| row.loss)
    } else if any(|row| row.score) {
        (Measured::Score, |row| row.score)
    } else {
        return Err(Error::settings("the journal has no scores. Remove --trace to model the losses"));
    };
    let mut batches: Vec<RecordedBatch> = Vec::new();
    // The last batch of that name: an epoch may be begun again.
    let mut named: HashMap<(u64, u32), usize> = HashMap::new();
    for event in &recording.events {
        match event {
            Event::Decide { epoch, step, rows } => {
                named.insert((*epoch, *step), batches.len());
                batches
                    .push(RecordedBatch { epoch: *epoch, rows: rows.iter().map(|row| (row.id, f32::NAN)).collect() });
            }
            Event::Learn { epoch, step, rows } => {
                // Scores of a batch that the journal has lost are nobody's.
                let Some(batch) = named.get(&(*epoch, *step)).map(|&batch| &mut batches[batch]) else { continue };
                let places: HashMap<u32, usize> =
                    batch.rows.iter().enumerate().map(|(place, row)| (row.0, place)).collect();
                for row in rows.iter().filter(|row| of(row).is_finite()) {
                    if let Some(&place) = places.get(&row.id) {
                        batch.rows[place].1 = of(row);
                    }
                }
            }
            _ => {}
        }
    }
    let known: Vec<u64> = recording.sizes().filter_map(|(_, bytes)| bytes).collect();
    let mean = known.iter().sum::<u64>() / known.len().max(1) as u64;
    let sizes: HashMap<u32, u64> = recording.sizes().map(|(id, bytes)| (id, bytes.unwrap_or(mean))).collect();
    let sizes = (!known.is_empty()).then_some(&sizes);
    Ok((Trace::of_batches(&batches, sizes)?, measured))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    const HEAD: &str = "# {\"lossfeed-journal\":1,\"samples\":9,\"capacity_bytes\":20,\"policy\":\"lru\",\"smoothing\":0}\n\
        event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm\n";

    fn told(events: &str) -> Result<(Trace, Measured)> {
        losses(&Recording::read(format!("{HEAD}{events}").as_bytes(), Limits::default()).unwrap())
    }

    #[test]
    fn scores_find_their_batch_however_late_and_the_trace_is_as_if_written_by_hand() {
        // Epoch 4 is left after a batch and begun again; the scores of its first pass come in the second.
        let events = "decide,4,0,0,7,7,keep,10,1,,,\ndecide,4,0,1,2,2,keep,30,1,,,\n\
            begin,5,0,,,,,,,,,\ndecide,5,0,0,2,2,hit,30,1,,,\ndecide,5,0,1,8,8,pass,,1,,,\n\
            learn,4,0,0,2,,,,,9,0.5,\nlearn,4,0,1,7,,,,,9,inf,\nlearn,5,0,0,8,,,,,9,0.25,\nlearn,5,9,0,8,,,,,9,7,\n\
            begin,4,0,,,,,,,,,\ndecide,4,0,0,2,2,hit,30,1,,,\nlearn,4,0,0,2,,,,,9,0.125,\nend,,,,,,,,,,,\n";
        let by_hand = "epoch,step,id,loss,bytes\n0,0,7,,10\n0,0,2,0.5,30\n1,0,2,,30\n1,0,8,0.25,20\n2,0,2,0.125,30\n";
        let by_hand = Trace::read(by_hand.as_bytes(), 10).unwrap();
        assert_eq!(format!("{:?}", told(events).unwrap()), format!("{:?}", (by_hand, Measured::Loss)));
        let scores = events.replace(",9,0.5,", ",0.5,,").replace(",9,inf,", ",,,").replace(",9,0.25,", ",0.25,,");
        let scores = scores.replace(",9,7,", ",7,,").replace(",9,0.125,", ",0.125,,");
        let (trace, measured) = told(&scores).unwrap();
        assert_eq!(measured, Measured::Score);
        assert_eq!(format!("{trace:?}"), format!("{:?}", told(events).unwrap().0));
    }

    #[test]
    fn a_run_that_learned_nothing_is_refused_with_the_remedy() {
        let said = told("decide,0,0,0,7,7,keep,10,1,,,\nend,,,,,,,,,,,\n").unwrap_err();
        assert!(
            said.kind() == lossfeed_control::ErrorKind::Settings && said.to_string().contains("no scores"),
            "{said}"
        );
        let (trace, _) = told("decide,0,0,0,7,7,pass,,1,,,\nlearn,0,0,0,7,,,,,1,1,\nend,,,,,,,,,,,\n").unwrap();
        assert!(!trace.has_sizes());
    }
}

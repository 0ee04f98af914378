//! The engine under a candle loop: batches become tensors, a model learns, and scores reach exactly the delivered ids.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, SGD};
use lossfeed::engine::Dataset;
use lossfeed::sampler::SamplerSettings;
use lossfeed::settings::ScoreKind;
use lossfeed::source::{Arrays, ImageMode};
use lossfeed::{Dtype, Engine, Settings, TensorSpec};
use lossfeed_candle::{Batch, Loader, Options};

const SAMPLES: usize = 96;
const WIDTH: usize = 4;

/// Sample `id` is [id, 1, class bits…]: its row of logits tells who it is.
fn arrays() -> Arrays {
    let row = |id: usize| [id as f32, 1.0, (id % 2) as f32, (id / 2 % 2) as f32];
    let data: Vec<f32> = (0..SAMPLES).flat_map(row).collect();
    let target: Vec<i64> = (0..SAMPLES).map(|id| (id % 3) as i64).collect();
    Arrays::new(
        bytemuck::cast_slice::<f32, u8>(&data).to_vec(),
        TensorSpec::new(Dtype::F32, [WIDTH]),
        bytemuck::cast_slice::<i64, u8>(&target).to_vec(),
        TensorSpec::class_index(),
        SAMPLES,
    )
    .unwrap()
}

fn loader(settings: Settings) -> Loader {
    let dataset = Dataset::new(Arc::new(arrays()), ImageMode::Auto, None).unwrap();
    let settings = Settings { stats: false, workers: Some(2), ..settings };
    Loader::new(Arc::new(Engine::new(dataset, settings).unwrap()), Device::Cpu)
}

fn stat(loader: &Loader, name: &str) -> f64 {
    loader.engine().stats().into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no stat {name}")).1
}

/// A loss that only the sample's own id explains: two classes, logit of the wrong one = id / 10.
fn telling_logits(batch: &Batch) -> Tensor {
    let id = batch.data.narrow(1, 0, 1).unwrap();
    let wrong = (id / 10.0).unwrap();
    let zero = wrong.zeros_like().unwrap();
    // (rows, 3) with the target's column 0 and the others id / 10.
    let columns: Vec<Tensor> = (0..3i64)
        .map(|c| {
            let hit = batch.target.eq(c).unwrap().unsqueeze(1).unwrap();
            hit.where_cond(&zero, &wrong).unwrap()
        })
        .collect();
    Tensor::cat(&columns, 1).unwrap()
}

#[test]
fn batches_hold_the_samples_their_ids_name() {
    let loader = loader(Settings { batch_size: 10, ..Settings::default() });
    let mut seen = Vec::new();
    for batch in loader.epoch().unwrap() {
        let batch = batch.unwrap();
        assert_eq!(batch.data.dims(), [batch.len(), WIDTH]);
        assert_eq!(
            (batch.data.dtype(), batch.target.dtype(), batch.weight.dtype()),
            (DType::F32, DType::I64, DType::F32)
        );
        let first: Vec<f32> = batch.data.narrow(1, 0, 1).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let target: Vec<i64> = batch.target.to_vec1().unwrap();
        for (row, &id) in batch.ids().iter().enumerate() {
            assert_eq!((first[row], target[row]), (id as f32, i64::from(id % 3)));
        }
        seen.extend_from_slice(batch.ids());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..SAMPLES as u32).collect::<Vec<_>>(), "the last batch is short and complete");
}

#[test]
fn scores_are_credited_to_exactly_the_delivered_ids() {
    for sampler in ["uniform", "importance"] {
        let settings = Settings {
            batch_size: 16,
            sampler: SamplerSettings::from_name(sampler).unwrap(),
            score: Some(lossfeed::settings::ScoreKind::Loss),
            smoothing: Some(0.0),
            cache_bytes: 1 << 14,
            ..Settings::default()
        };
        let loader = loader(settings);
        let mut delivered = vec![false; SAMPLES];
        for batch in loader.epoch().unwrap().take(3) {
            let batch = batch.unwrap();
            loader.cross_entropy(&telling_logits(&batch), &batch, &Options::default()).unwrap();
            batch.ids().iter().for_each(|&id| delivered[id as usize] = true);
        }
        loader.flush().unwrap();
        for (id, (belief, delivered)) in loader.engine().importance().into_iter().zip(delivered).enumerate() {
            assert_eq!(!belief.is_nan(), delivered, "{sampler}: sample {id}");
            if delivered {
                let expected = (2.0 * (id as f64 / 10.0).exp() + 1.0).ln();
                assert!((f64::from(belief) - expected).abs() < 1e-4 * expected, "{sampler}: {belief} for {expected}");
            }
        }
    }
}

#[test]
fn a_batch_is_scored_once_and_by_its_own_loader() {
    let made = || loader(Settings { batch_size: 8, score: Some(ScoreKind::Loss), ..Settings::default() });
    let (a, b) = (made(), made());
    let batch = a.epoch().unwrap().next().unwrap().unwrap();
    let logits = telling_logits(&batch);
    a.score(&logits, &batch, &Options::default()).unwrap();
    a.cross_entropy(&logits, &batch, &Options::default()).unwrap();
    assert_eq!((stat(&a, "scores_total"), stat(&a, "scores_repeated_total")), (8.0, 8.0));
    let error = b.cross_entropy(&logits, &batch, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("another loader"), "{error}");

    let other = a.epoch().unwrap().next().unwrap().unwrap();
    a.score_losses(&Tensor::new(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &Device::Cpu).unwrap(), &other).unwrap();
    assert_eq!(stat(&a, "scores_total"), 16.0);
    a.engine().close();
    assert!(a.epoch().unwrap_err().to_string().contains("closed"));
    assert!(a.score(&telling_logits(&other), &other, &Options::default()).is_err());
}

#[test]
fn weights_multiply_losses_and_a_mean_stays_over_rows() {
    let settings =
        Settings { batch_size: 16, sampler: SamplerSettings::from_name("importance").unwrap(), ..Settings::default() };
    let loader = loader(settings);
    for epoch in 0..2 {
        for batch in loader.epoch().unwrap() {
            let batch = batch.unwrap();
            let logits = telling_logits(&batch);
            let ours = loader.cross_entropy(&logits, &batch, &Options::default()).unwrap().to_scalar::<f32>().unwrap();
            let weights: Vec<f32> = batch.weight.to_vec1().unwrap();
            let loss = |&id: &u32| (2.0 * (f64::from(id) / 10.0).exp() + 1.0).ln();
            let weighted = batch.ids().iter().zip(&weights).map(|(id, &w)| loss(id) * f64::from(w)).sum::<f64>();
            let expected = weighted / batch.len() as f64;
            assert!((f64::from(ours) - expected).abs() < 1e-4 * expected, "{ours} for {expected}");
            assert!(epoch == 0 || weights.iter().any(|&w| (w - 1.0).abs() > 1e-3), "the second epoch is weighted");
        }
    }
}

#[test]
fn a_linear_model_learns_through_the_hook() {
    let loader = loader(Settings { batch_size: 12, ..Settings::default() });
    // Class id % 3 is no linear function of the features; id mod 2 is one: learn to tell the targets' parity bit.
    let weight = Var::zeros((WIDTH, 2), DType::F32, &Device::Cpu).unwrap();
    let mut sgd = SGD::new(vec![weight.clone()], 0.5).unwrap();
    let mut means = Vec::new();
    for epoch in 0..6 {
        let mut sum = 0.0;
        for batch in loader.epoch().unwrap() {
            let mut batch = batch.unwrap();
            let features =
                (batch.data.broadcast_mul(&Tensor::new(&[0.01f32, 1.0, 1.0, 1.0], &Device::Cpu).unwrap())).unwrap();
            let logits = features.matmul(&weight).unwrap();
            batch.target = batch.data.narrow(1, 2, 1).unwrap().flatten_all().unwrap().to_dtype(DType::I64).unwrap();
            let loss = loader.cross_entropy(&logits, &batch, &Options::default()).unwrap();
            sgd.backward_step(&loss).unwrap();
            sum += f64::from(loss.to_scalar::<f32>().unwrap()) * batch.len() as f64;
        }
        means.push(sum / SAMPLES as f64);
        let unseen = loader.engine().importance().iter().filter(|b| b.is_nan()).count();
        assert_eq!(unseen, 0, "epoch {epoch} scored every sample");
    }
    assert!(means[5] < 0.4 * means[0], "{means:?}");
    assert_eq!(stat(&loader, "scores_total"), 6.0 * SAMPLES as f64);
}

//! What the targets share: the seeds on request, and panics that the engine contains.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lossfeed::loader::Next;
use lossfeed::sampler::SamplerSettings;
use lossfeed::source::{Arrays, Decoder, ImageMode, Resize, Scratch};
use lossfeed::{Dataset, Dtype, Engine, ErrorKind, Settings, TensorSpec};

/// At the start of every target. With `LOSSFEED_SEEDS=FOLDER` it writes its seeds there, made by the engine's own
/// writers, and ends the process.
pub fn start(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os("LOSSFEED_SEEDS") else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        let path = Path::new(&folder).join(format!("written-{number}"));
        std::fs::write(&path, seed).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    std::process::exit(0);
}

/// At the start of a target whose engine code contains panics of others: libFuzzer's own hook would end the process at
/// the first. Each place that panics is told once; a panic that is *not* contained still ends the run.
pub fn tell_of_contained_panics() {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        // A panic of the engine's own sources is a finding wherever it is caught.
        if place.contains("engine/src/") || !place.contains("registry") {
            eprintln!("panic: {info}");
            std::process::abort();
        }
        if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(place.clone()) {
            eprintln!("CONTAINED PANIC {place}: {info}");
        }
    }));
}

/// An image in the three modes, stretched, cropped and as it is: pixels, or a bad sample with words.
pub fn image(decoders: &[Decoder], encoded: &[u8]) {
    let mut scratch = Scratch::default();
    for decoder in decoders {
        let mut out = vec![0; decoder.spec().bytes()];
        if let Err(e) = decoder.decode(encoded, &mut out, &mut scratch) {
            assert_eq!(e.kind(), ErrorKind::Sample, "{e}");
            assert!(!e.to_string().is_empty());
            continue;
        }
        // What is left in the scratch memory of the images before does not shine through.
        let mut again = vec![0xaa; out.len()];
        decoder.decode(encoded, &mut again, &mut Scratch::default()).expect("it was decoded a moment ago");
        assert!(out == again, "the same image gave two results");
    }
}

/// Decoders with which only the image itself can be a reason to refuse: those that resize.
pub fn decoders() -> Vec<Decoder> {
    let first = include_bytes!("../../../golden/images/rgb.png");
    let (stretched, cropped) = (Resize { to: (8, 8), crop: None }, Resize { to: (12, 9), crop: Some((8, 8)) });
    [(ImageMode::Rgb, Some(stretched)), (ImageMode::Gray, Some(cropped)), (ImageMode::Auto, None)]
        .map(|(mode, resize)| Decoder::for_image(first, mode, resize).expect("the golden image is one"))
        .into()
}

/// States of real engines: before an epoch, in the middle of one, with and without scores.
pub fn states() -> Vec<Vec<u8>> {
    let state = |adaptive: bool, batches: usize| {
        let data = Arrays::new(
            vec![1; 64],
            TensorSpec::new(Dtype::U8, [4]),
            vec![0; 128],
            TensorSpec::class_index(),
            16,
        )?;
        let dataset = Dataset::new(Arc::new(data), ImageMode::Auto, None)?;
        let sampler = SamplerSettings::from_name(if adaptive { "cost-aware" } else { "uniform" })?;
        let engine =
            Engine::new(dataset, Settings { batch_size: 4, stats: false, workers: Some(0), sampler, ..Settings::default() })?;
        let iteration = engine.start_epoch()?;
        for _ in 0..batches {
            if let Next::Batch(batch) = engine.next_batch(iteration, Duration::from_secs(5))? {
                engine.apply_losses(&batch.ticket, &[0.5, 2.0, 1.0, 0.25])?;
            }
        }
        engine.state()
    };
    [(false, 0), (false, 2), (true, 0), (true, 2)].map(|(a, b)| state(a, b).expect("a small engine runs")).into()
}

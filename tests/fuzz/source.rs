//! Files that try to hurt the readers: the named ones of `corpus/`, and random damage to good ones.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use lossfeed::ErrorKind;
use lossfeed::source::{Decoder, ImageMode, OpenOptions, Resize, Scratch, Source, decoder_of, endings, open};
use proptest::prelude::*;

fn here(parts: &[&str]) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR")].iter().chain(parts).collect()
}

fn corpus(name: &str) -> Vec<u8> {
    std::fs::read(here(&["fuzz", "corpus", name])).unwrap()
}

fn open_shard(name: &str) -> lossfeed::Result<Arc<dyn Source>> {
    open(here(&["fuzz", "corpus", name]).to_str().unwrap(), &OpenOptions::default())
}

#[test]
fn hostile_shards_are_refused_with_a_reason() {
    use ErrorKind::{Sample, Source};
    for (name, kind, word) in [
        ("cut-in-member.tar", Source, "truncated"),
        ("cut-in-header.tar", Source, "cannot be read as a tar archive"),
        ("no-end-mark.tar", Source, "no end mark"),
        ("two-archives.tar", Source, "goes on after its end mark"),
        ("gzip.tar", Source, "gzip"),
        ("text.tar", Source, "cannot be read as a tar archive"),
        ("bad-checksum.tar", Source, "checksum"),
        ("size-beyond-file.tar", Source, "wants 8589934591 bytes"),
        ("size-negative.tar", Source, "size-negative.tar"),
        ("size-2-to-63.tar", Source, "size-2-to-63.tar"),
        ("size-not-octal.tar", Source, "cannot be read as a tar archive"),
        ("long-name-beyond-file.tar", Source, "long-name-beyond-file.tar"),
        ("long-name-of-nothing.tar", Source, "followed by no member"),
        ("name-twice.tar", Sample, "cat/ok.png twice"),
        ("two-images-one-key.tar", Sample, "share the key a"),
        ("label-in-words.tar", Sample, "should hold a class number, and its 3 bytes are not one"),
        ("label-too-large.tar", Sample, "should hold a class number, and its 20 bytes are not one"),
        ("label-too-long.tar", Sample, "5001 bytes"),
    ] {
        match open_shard(name) {
            Ok(source) => panic!("{name} was opened: {}", source.describe()),
            Err(e) => {
                assert_eq!(e.kind(), kind, "{name}: {e}");
                assert!(e.to_string().contains(word), "{word:?} is missing from: {e}");
            }
        }
    }
}

#[test]
fn members_that_lead_elsewhere_are_ignored_and_counted() {
    for (name, samples, words) in [
        ("links.tar", vec!["links.tar/cat/ok.png", "links.tar/cat/hard.png"], "1 link ignored"),
        (
            "climbing-names.tar",
            vec!["climbing-names.tar/cat/ok.png", "climbing-names.tar/dog/absolute.png"],
            "2 names with '..' ignored",
        ),
        ("devices.tar", vec!["devices.tar/cat/ok.png"], "2 other files ignored"),
    ] {
        let source = open_shard(name).unwrap();
        let names: Vec<String> = (0..source.len() as u32).map(|id| source.name(id)).collect();
        assert_eq!(names, samples);
        assert!(source.describe().contains(words), "{}", source.describe());
    }
}

/// Decoders that resize, so that nothing but the image itself can be a reason to refuse.
static DECODERS: LazyLock<[Decoder; 2]> = LazyLock::new(|| {
    let shard = open_shard("links.tar").unwrap();
    let whole = Resize { to: (8, 8), crop: None };
    [whole, Resize { crop: Some((5, 7)), ..whole }]
        .map(|resize| decoder_of(&*shard, ImageMode::Rgb, Some(resize)).unwrap())
});

/// Stretched and cropped: what is refused in one way is refused in the other.
fn decode(encoded: &[u8]) -> lossfeed::Result<()> {
    let [stretched, cropped] = DECODERS.each_ref().map(|decoder| {
        let mut out = vec![0; decoder.spec().bytes()];
        decoder.decode(encoded, &mut out, &mut Scratch::default())
    });
    assert_eq!(stretched.is_ok(), cropped.is_ok(), "{stretched:?} but {cropped:?}");
    stretched
}

#[test]
fn hostile_images_are_bad_samples_with_a_reason() {
    let mut seen = 0;
    for entry in std::fs::read_dir(here(&["fuzz", "corpus"])).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !is_image(&name) {
            continue;
        }
        seen += 1;
        let error = decode(&corpus(&name)).expect_err(&name);
        assert_eq!(error.kind(), ErrorKind::Sample, "{name}: {error}");
        if name.starts_with("huge-dimensions") || name.starts_with("least-dimensions") {
            assert!(error.to_string().contains("at most 67108864"), "{name}: {error}");
        }
    }
    assert!(seen >= 43, "{seen} images");
}

fn is_image(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, ending)| endings().any(|known| known == ending))
}

fn golden_images() -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(here(&["golden", "images"])).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.to_str().is_some_and(is_image));
    paths.sort();
    assert!(paths.len() >= 45);
    paths.iter().map(|p| std::fs::read(p).unwrap()).collect()
}

/// How many images are damaged; `LOSSFEED_FUZZ_CASES` says it for a longer search.
fn cases() -> u32 {
    std::env::var("LOSSFEED_FUZZ_CASES").map_or(2000, |cases| cases.parse().expect("LOSSFEED_FUZZ_CASES is a number"))
}

static IMAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(golden_images);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    #[test]
    fn damaged_images_are_an_error_or_pixels_and_never_a_panic(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut encoded = which.get(&IMAGES).clone();
        for (at, value) in damage {
            let at = at.index(encoded.len());
            encoded[at] = value;
        }
        if let Some(cut) = cut {
            encoded.truncate(cut.index(encoded.len()));
        }
        if let Err(e) = decode(&encoded) {
            prop_assert_eq!(e.kind(), ErrorKind::Sample, "{}", e);
        }
    }

    #[test]
    fn random_bytes_after_a_good_beginning_never_panic(
        which in any::<prop::sample::Index>(),
        kept in 0..64usize,
        rest in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut encoded = which.get(&IMAGES).clone();
        encoded.truncate(kept.max(3));
        encoded.extend(rest);
        if let Err(e) = decode(&encoded) {
            prop_assert_eq!(e.kind(), ErrorKind::Sample, "{}", e);
        }
    }
}

/// States and recorded runs come from anywhere too. Whatever the file: as noise, it is refused with words.
#[test]
fn every_file_of_the_corpus_is_refused_or_read_as_a_state_and_as_a_trace() {
    let mut seen = 0;
    for entry in std::fs::read_dir(here(&["fuzz", "corpus"])).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        seen += 1;
        match lossfeed::loader::checkpoint::Checkpoint::from_bytes(&bytes) {
            Ok(state) => assert!(!state.to_bytes().unwrap().is_empty()),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Settings, "{e}"),
        }
        match lossfeed::journal::read_trace(&bytes[..], 4096) {
            Ok(trace) => assert!(trace.samples() <= trace.requests()),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Source, "{e}"),
        }
    }
    assert!(seen > 40, "{seen} files");
}

//! Bytes after BMP's signature, through the public decoder.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lossfeed::source::Decoder;
use lossfeed_fuzz::{decoders, image, start, tell_of_contained_panics};

static DECODERS: LazyLock<Vec<Decoder>> = LazyLock::new(decoders);

fuzz_target!(
    init: {
        start(Vec::new);
        tell_of_contained_panics();
    },
    |bytes: &[u8]| image(&DECODERS, bytes)
);

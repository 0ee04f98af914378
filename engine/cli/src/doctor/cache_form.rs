//! Which form of a sample pays in the cache here: a picture is decoded, and its pixels are copied, for a moment.

use std::time::{Duration, Instant};

use lossfeed::error::Result;
use lossfeed::source::{Decoder, ImageMode, Scratch};

use super::Check;

/// 224 x 224 pixels of noise in octaves, JPEG quality 85: about as many bits a pixel as a photograph
/// (`tests/golden/images/make.py`).
const PICTURE: &[u8] = include_bytes!("picture.jpg");
/// How long each of the two is done; the median counts.
const TRIAL: Duration = Duration::from_millis(60);
/// Copies go round in a memory that no processor cache holds, as a sample's do.
const COPIED_BYTES: usize = 64 << 20;

/// What it came to, in µs and bytes.
struct Cost {
    decode_us: f64,
    copy_us: f64,
    decoded_bytes: usize,
}

pub(super) fn check() -> Check {
    match measure() {
        Ok(cost) => Check::ok("cache form", said(&cost)),
        Err(error) => Check::limited("cache form", format!("not measured: {error}"), "please report this"),
    }
}

fn said(cost: &Cost) -> String {
    format!(
        "a {:.0} KB JPEG of 224 x 224 decodes in {:.0} us a core, its {:.0} KB of pixels copy in {:.0} us: cache_form=\"decoded\" makes a hit {:.0} times cheaper and \
         takes {:.0} times the memory; choose it when the cache holds what you want to keep decoded, \"encoded\" when fetching is what you wait for",
        PICTURE.len() as f64 / 1e3,
        cost.decode_us,
        cost.decoded_bytes as f64 / 1e3,
        cost.copy_us,
        cost.decode_us / cost.copy_us,
        cost.decoded_bytes as f64 / PICTURE.len() as f64,
    )
}

fn measure() -> Result<Cost> {
    let decoder = Decoder::for_image(PICTURE, ImageMode::Rgb, None)?;
    let decoded_bytes = decoder.spec().bytes();
    let (mut pixels, mut scratch) = (vec![0; decoded_bytes], Scratch::default());
    let decode_us = median_us(|_| decoder.decode(PICTURE, &mut pixels, &mut scratch))?;
    let kept = vec![1u8; COPIED_BYTES];
    let places = COPIED_BYTES / decoded_bytes;
    let copy_us = median_us(|turn| {
        // A stride of many samples: random enough that the next one is not fetched ahead.
        let at = (turn * 37) % places * decoded_bytes;
        pixels.copy_from_slice(&kept[at..at + decoded_bytes]);
        std::hint::black_box(&pixels);
        Ok(())
    })?;
    Ok(Cost { decode_us, copy_us, decoded_bytes })
}

/// The median of as many calls as fit into the trial, after one.
fn median_us(mut body: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    body(0)?;
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < TRIAL || times.len() < 3 {
        let begun = Instant::now();
        body(times.len() + 1)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2].max(0.01))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_measured_and_compared_in_words() {
        let cost = measure().unwrap();
        assert_eq!(cost.decoded_bytes, 224 * 224 * 3);
        assert!(cost.decode_us > 0.0 && cost.copy_us > 0.0);
        let text = said(&Cost { decode_us: 200.0, copy_us: 20.0, decoded_bytes: 150_528 });
        assert!(text.contains("15 KB JPEG") && text.contains("200 us a core"), "{text}");
        assert!(text.contains("10 times cheaper and takes 10 times the memory"), "{text}");
    }
}

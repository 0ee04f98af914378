//! A page of a store's listing: objects with plain names, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lossfeed::source::fuzzing;

fuzz_target!(init: lossfeed_fuzz::start(fuzzing::listing_seeds), |bytes: &[u8]| fuzzing::listing(bytes));

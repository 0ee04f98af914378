//! The CUDA half of the engine against a driver made of threads (`double.cpp`): every byte, every wait, every refusal,
//! without a GPU.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(target_os = "linux")]
mod copies;
#[cfg(target_os = "linux")]
mod double;
#[cfg(target_os = "linux")]
mod images;
#[cfg(target_os = "linux")]
mod journey;
#[cfg(target_os = "linux")]
mod modules;
#[cfg(target_os = "linux")]
mod paths;
#[cfg(target_os = "linux")]
mod planted;
#[cfg(target_os = "linux")]
mod refusals;
#[cfg(target_os = "linux")]
mod scores;
#[cfg(target_os = "linux")]
#[path = "../journeys/support.rs"]
#[allow(dead_code)]
mod support;

//! The arithmetic on the CPU: the plain reference against the textbook, everything else against the reference.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod cases;
mod compare;
mod fast;
mod fiber;
mod gpu;
mod gradient;
mod prebuilt;
mod rank;
mod reference;

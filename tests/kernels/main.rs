//! The arithmetic on the CPU: the plain reference against the textbook, everything else against the reference.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod backward_reference;
mod cases;
mod checks;
mod compare;
mod fast;
mod fiber;
mod gather_checks;
mod gpu;
mod gradient;
mod gradient_checks;
mod image_checks;
mod mail_checks;
mod mean_checks;
mod mixing_checks;
mod prebuilt;
mod program;
mod ptx;
mod rank;
mod reference;
mod retouch_checks;
mod shapes;
mod sweep;

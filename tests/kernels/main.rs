//! The arithmetic on the CPU: the plain reference against the textbook, everything else against the reference.

mod cases;
mod compare;
mod fast;
mod fiber;
mod gpu;
mod prebuilt;
mod rank;
mod reference;

//! The pure half held to things simpler than itself.

mod ahead;
mod batches;
mod control;
mod hostile;
mod jobs;
mod journal;
mod large;
mod pads;
mod policies;
mod present;
mod queue;
mod replays;
mod residents;
mod samplers;
mod selection;
mod simulate;
mod substitution;
mod together;
mod trace;
mod twins;

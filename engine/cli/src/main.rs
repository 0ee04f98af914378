//! The `lossfeed` program.

fn main() {}

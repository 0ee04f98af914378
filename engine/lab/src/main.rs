//! The `lossfeed-lab` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    ExitCode::from(u8::try_from(lossfeed_lab::run(&args)).unwrap_or(1))
}

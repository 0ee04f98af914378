//! The `lossfeed` program.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let code = lossfeed_cli::run(&args, &mut |_| lossfeed_cli::train::exec_python(&args));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

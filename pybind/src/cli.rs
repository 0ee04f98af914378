//! The command line, as the wheel starts it.

use std::ffi::OsString;

use lossfeed_cli::TrainArgs;
use pyo3::prelude::*;

use crate::errors::contract;

/// Runs the command line on `argv` (without the program's name) and returns its exit code. `train(options)` starts a
/// training run; nothing else here imports torch.
#[pyfunction]
pub(crate) fn cli_main(py: Python<'_>, argv: Vec<OsString>, train: Py<PyAny>) -> PyResult<i32> {
    let mut raised = None;
    let code = py.detach(|| {
        lossfeed_cli::run(&argv, &mut |options: &TrainArgs| {
            Python::attach(|py| match call(py, &train, options) {
                Ok(code) => code,
                Err(error) => {
                    raised = Some(error);
                    1
                }
            })
        })
    });
    raised.map_or(Ok(code), Err)
}

fn call(py: Python<'_>, train: &Py<PyAny>, options: &TrainArgs) -> PyResult<i32> {
    let text = serde_json::to_string(options).map_err(|e| contract(e.to_string()))?;
    let options = py.import("json")?.call_method1("loads", (text,))?;
    train.bind(py).call1((options,))?.extract()
}

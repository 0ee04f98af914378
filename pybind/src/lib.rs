//! The Python face: translation only. Decisions live in the engine, conveniences in `python/lossfeed`.

mod batch;
mod buffer;
mod calls;
mod cli;
mod courier;
mod cuda;
mod dataset;
mod engine;
mod errors;
mod images;
mod interpreter;
mod items;
mod lent;
mod logging;
mod mailbox;
mod opening;
mod openmp;
mod packing;
mod passing;
mod plans;
mod policies;
mod process;
mod progress;
mod samplers;
mod scores;
mod source;
mod spec;
mod tails;
mod turns;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logging::listen();
    lossfeed::interrupt::interrupted_by(errors::interrupted);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<source::Source>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<passing::Pass>()?;
    module.add_class::<passing::Taken>()?;
    module.add_class::<batch::Slot>()?;
    module.add_class::<batch::Ticket>()?;
    module.add_class::<tails::Tails>()?;
    module.add_class::<cuda::CudaKernels>()?;
    module.add_class::<mailbox::Mailbox>()?;
    module.add_class::<plans::ScorePlan>()?;
    module.add_class::<plans::LossPlan>()?;
    module.add_class::<courier::Courier>()?;
    module.add_class::<courier::Sent>()?;
    module.add_class::<images::ImageTransform>()?;
    module.add_function(wrap_pyfunction!(images::crop_box, module)?)?;
    module.add_function(wrap_pyfunction!(source::open_source, module)?)?;
    module.add_function(wrap_pyfunction!(source::table_source, module)?)?;
    module.add_function(wrap_pyfunction!(source::files_below, module)?)?;
    module.add_function(wrap_pyfunction!(source::without_secrets, module)?)?;
    module.add_function(wrap_pyfunction!(source::schemes, module)?)?;
    module.add_function(wrap_pyfunction!(source::array_source, module)?)?;
    module.add_function(wrap_pyfunction!(source::record_source, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::dataset_source, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::numbers_source, module)?)?;
    module.add_class::<calls::Call>()?;
    module.add_class::<packing::Packing>()?;
    module.add_class::<items::Rows>()?;
    module.add_class::<turns::Turns>()?;
    module.add_function(wrap_pyfunction!(calls::leave, module)?)?;
    module.add_function(wrap_pyfunction!(calls::forked, module)?)?;
    module.add_function(wrap_pyfunction!(interpreter::fork_begins, module)?)?;
    module.add_function(wrap_pyfunction!(interpreter::fork_ends, module)?)?;
    module.add_function(wrap_pyfunction!(scores::forward_rows, module)?)?;
    module.add_function(wrap_pyfunction!(scores::backward_rows, module)?)?;
    module.add_function(wrap_pyfunction!(scores::rank_counts, module)?)?;
    module.add_function(wrap_pyfunction!(openmp::use_torch_threads, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::scratch_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::relax_captures, module)?)?;
    module.add_function(wrap_pyfunction!(engine::exchange_refusal, module)?)?;
    module.add_function(wrap_pyfunction!(policies::cache_policies, module)?)?;
    module.add_function(wrap_pyfunction!(policies::policies_in_the_lab, module)?)?;
    module.add_function(wrap_pyfunction!(policies::default_policy, module)?)?;
    module.add_function(wrap_pyfunction!(policies::counters, module)?)?;
    module.add_function(wrap_pyfunction!(samplers::sampler_options, module)?)?;
    module.add_function(wrap_pyfunction!(samplers::sampler_problem, module)?)?;
    module.add_function(wrap_pyfunction!(cli::cli_main, module)?)?;
    Ok(())
}

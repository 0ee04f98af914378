//! The kernels' code on a device: machine code if this GPU's is shipped, else PTX, which the driver compiles.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;
use lossfeed_kernels::ptx::{self, Image};

use super::driver::Driver;
use super::probe::describe;
use crate::error::{Error, Result};

/// Room for what the driver's compiler says about the PTX.
const LOG_BYTES: usize = 8192;

/// Every kernel, ready to be launched.
pub(super) struct Loaded {
    /// The image's name.
    pub(super) image: &'static str,
    pub(super) functions: Vec<(&'static str, sys::CUfunction)>,
}

/// Loads the best image that the driver takes. One that it refuses is said in the log, and the next is tried.
pub(super) fn load(driver: &Driver) -> Result<Loaded> {
    let gpu = driver.capability()?;
    let mut refusals = Vec::new();
    for image in ptx::images_for(gpu) {
        match try_image(driver, image)? {
            Ok(functions) => {
                if image.machine_code.is_none() {
                    tracing::info!(
                        compute_capability = format!("{}.{}", gpu.0, gpu.1),
                        "the GPU's driver compiled the kernels and cached the result for the next process"
                    );
                }
                return Ok(Loaded { image: image.name, functions });
            }
            Err(reason) => {
                if image.machine_code.is_some() {
                    tracing::warn!(
                        image = image.name,
                        %reason,
                        "the GPU's driver refused the kernels' machine code and compiles PTX instead, which takes \
                         seconds"
                    );
                }
                refusals.push(format!("{}: {reason}", image.name));
            }
        }
    }
    Err(Error::device(format!(
        "the GPU's driver refuses the kernels for compute capability {}.{} ({}): update the driver; GPUs before 7.5 are not supported",
        gpu.0,
        gpu.1,
        refusals.join("; ")
    )))
}

/// The image's kernels, or why the driver does not want this image. An error is any other failure: no image would help.
fn try_image(driver: &Driver, image: &Image) -> Result<Result<Vec<(&'static str, sys::CUfunction)>, String>> {
    // The driver keeps a copy of its own (cuLibraryLoadData says so of what it is not told will be preserved).
    let bytes = image.unpack().map_err(|error| Error::memory("no memory to unpack the kernels").because(error))?;
    let mut log = vec![0u8; LOG_BYTES];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size travels in the pointer's place (cuModuleLoadDataEx).
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG_BYTES)];
    let mut names = Vec::with_capacity(ptx::KERNELS.len());
    for name in ptx::KERNELS {
        let c_name = CString::new(name).map_err(|nul| Error::internal("a kernel's name holds a zero").because(nul))?;
        names.push((name, c_name));
    }
    let tried = driver.call(&format!("loading the kernels ({})", image.name), || {
        let mut module = std::ptr::null_mut();
        let (n, options, values) = (options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: the image is whole machine code or text that ends with a zero; the two options have their two values;
        // image, log and arrays outlive the call.
        let loaded = unsafe { sys::cuModuleLoadDataEx(&raw mut module, bytes.as_ptr().cast(), n, options, values) };
        if let Err(error) = loaded.result() {
            return told_apart(error);
        }
        // SAFETY: the module was just loaded.
        match unsafe { functions(module, &names) } {
            Ok(functions) => Ok(Ok(functions)),
            Err(error) => {
                // SAFETY: just loaded; none of its functions has been given to anybody.
                unsafe { sys::cuModuleUnload(module) }.result()?;
                told_apart(error)
            }
        }
    })?;
    Ok(tried.map_err(|error| {
        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
        let said = String::from_utf8_lossy(&log[..end]).trim().to_owned();
        if said.is_empty() { describe(error) } else { format!("{}: {said}", describe(error)) }
    }))
}

/// Whether the driver dislikes this image, or something else is wrong.
fn told_apart<T>(error: DriverError) -> Result<Result<T, DriverError>, DriverError> {
    use sys::CUresult::{
        CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_SOURCE,
        CUDA_ERROR_JIT_COMPILATION_DISABLED, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    };
    match error.0 {
        CUDA_ERROR_INVALID_IMAGE
        | CUDA_ERROR_INVALID_PTX
        | CUDA_ERROR_INVALID_SOURCE
        | CUDA_ERROR_JIT_COMPILATION_DISABLED
        | CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        | CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUDA_ERROR_NOT_FOUND
        | CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Ok(Err(error)),
        _ => Err(error),
    }
}

/// # Safety
/// Inside [`Driver::call`]; the module is loaded.
unsafe fn functions(
    module: sys::CUmodule,
    names: &[(&'static str, CString)],
) -> Result<Vec<(&'static str, sys::CUfunction)>, DriverError> {
    let one = |(name, c_name): &(&'static str, CString)| {
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name ends with a zero; the pointer is to a local.
        unsafe { sys::cuModuleGetFunction(&raw mut function, module, c_name.as_ptr()) }.result()?;
        let mut registers = 0;
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NUM_REGS;
        // The driver loads code when it is first needed; asking about it now keeps that out of a training step and out
        // of a graph capture. SAFETY: the function was just got; the pointer is to a local.
        unsafe { sys::cuFuncGetAttribute(&raw mut registers, attribute, function) }.result()?;
        Ok((*name, function))
    };
    names.iter().map(one).collect()
}

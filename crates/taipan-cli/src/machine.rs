//! The device, dtype and threads of a command, from its flags.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use taipan::{DType, Device};
use taipan_lm::InvalidValue;

use crate::{Failure, Usage, usage};

/// The dtype of the weights.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F32,
    Bf16,
    F16,
    F64,
}

impl From<Dtype> for DType {
    fn from(dtype: Dtype) -> DType {
        match dtype {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::F64 => DType::F64,
        }
    }
}

/// Weights in fewer bits than those of their dtype.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Quantize {
    /// 8 bits, with a scale for each block of 32
    Int8,
}

/// The device of this name; an error if it does not support the dtype, if one is given.
pub fn device(name: &str, dtype: impl Into<Option<Dtype>>) -> Result<Device, Failure> {
    let device = match name {
        "cpu" => Device::Cpu,
        "gpu" => Device::gpu()?,
        "auto" => Device::best()?,
        name => Device::gpu_named(name)?,
    };
    if let Some(dtype) = dtype.into().map(DType::from)
        && !device.supports(dtype)
    {
        let device = device.describe();
        return usage(format!("--dtype is {dtype}, which {device} does not support"));
    }
    Ok(device)
}

/// Run `f` with this many threads, or one per core, and on one of them: from another thread, every
/// op would have to be handed over.
pub fn with_threads<R: Send>(
    threads: Option<usize>,
    f: impl FnOnce() -> Result<R, Failure> + Send,
) -> Result<R, Failure> {
    if let Some(threads) = threads {
        InvalidValue::check("program", "threads", threads, 1..=1024).map_err(Usage::from)?;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build()?;
    pool.install(f)
}

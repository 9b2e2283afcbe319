//! What a command computes on, as its flags name it.

use std::error::Error;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use taipan::{DType, Device};

use crate::Usage;

/// The type of the weights.
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

/// The device of this name, if weights of this type can live there.
pub fn device(name: &str, dtype: Dtype) -> Result<Device, Box<dyn Error>> {
    let device = match name {
        "cpu" => Device::Cpu,
        "gpu" => Device::gpu()?,
        "auto" => Device::best()?,
        name => Device::gpu_named(name)?,
    };
    let dtype = DType::from(dtype);
    match device.supports(dtype) {
        true => Ok(device),
        false => {
            let device = device.describe();
            Err(Usage(format!("--dtype is {dtype}, which {device} does not have")).into())
        }
    }
}

/// Compute with so many threads, or one per core.
pub fn use_threads(threads: Option<usize>) -> Result<(), Box<dyn Error>> {
    match threads {
        Some(0) => Err(Usage("--threads is 0, expected at least 1".into()).into()),
        Some(threads) => Ok(rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?),
        None => Ok(()),
    }
}

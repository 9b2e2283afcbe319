//! The device, dtype and threads of a command, from its flags.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use taipan::{DType, Device};
use taipan_lm::InvalidValue;

use crate::{Failure, Usage, message, usage};

/// What `--device` is unless it is given.
pub const AUTO: &str = "auto";

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

/// The name of a device for a model: the CPU's if none was named and the weights are quantised,
/// which only the CPU supports.
pub fn name_for(name: &str, quantize: Option<Quantize>) -> &str {
    if name == AUTO && quantize.is_some() { "cpu" } else { name }
}

/// The device of this name, which is announced if it is a GPU that nobody named.
pub fn device(name: &str, dtype: impl Into<Option<Dtype>>) -> Result<Device, Failure> {
    let device = open(name)?;
    check(&device, dtype.into().map(DType::from))?;
    if name == AUTO && device != Device::Cpu {
        message::note(format!("running on {}; {CHOOSE}", device.describe()));
    }
    Ok(device)
}

/// How another device is chosen.
pub const CHOOSE: &str = "--device cpu, or a name of taipan devices, chooses another";

/// The device of this name.
pub fn open(name: &str) -> Result<Device, Failure> {
    Ok(match name {
        "cpu" => Device::Cpu,
        "gpu" => Device::gpu()?,
        AUTO => Device::best()?,
        name => Device::gpu_named(name)?,
    })
}

/// The device of this name for one of several processes on a machine: they take turns in the GPUs
/// that the name fits.
pub fn open_local(name: &str, local_rank: usize) -> Result<Device, Failure> {
    let named = match name {
        "cpu" => return Ok(Device::Cpu),
        "gpu" | AUTO => None,
        name => Some(name),
    };
    match taipan::gpu::fitting_adapters(named)?.as_slice() {
        [] => open(name),
        all => Ok(Device::gpu_named(&all[local_rank % all.len()].to_string())?),
    }
}

/// An error that says what to use instead if the device does not support weights of a dtype.
pub fn check(device: &Device, dtype: impl Into<Option<DType>>) -> Result<(), Failure> {
    let Some(dtype) = dtype.into().filter(|dtype| !device.supports(*dtype)) else { return Ok(()) };
    let usable = [DType::F32, DType::F16].into_iter().filter(|dtype| device.supports(*dtype));
    let usable: Vec<_> = usable.map(|dtype| format!("--dtype {dtype}")).collect();
    let (device, usable) = (device.describe(), usable.join(" or "));
    usage(format!("{device} does not support {dtype}; use {usable}, or --device cpu"))
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

//! The device of a tensor.

use crate::DType;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::pool::Memory;

/// A device, chosen at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The host's processor: threads by rayon, vector instructions chosen at run time.
    Cpu,
    /// A GPU, through WebGPU.
    Gpu(Gpu),
}

impl Device {
    /// A GPU if the machine has one, or else the CPU. A software GPU is used only if the
    /// environment variable `TAIPAN_ADAPTER` names it, by its number or a part of its name, as
    /// `taipan devices` shows them: the CPU is faster.
    ///
    /// Absent in browsers, where nothing may block: see [`gpu::adapters`](crate::gpu::adapters).
    #[cfg(not(target_family = "wasm"))]
    pub fn best() -> Result<Device> {
        Ok(Gpu::find(None)?.map_or(Device::Cpu, Device::Gpu))
    }

    /// A GPU: that which `TAIPAN_ADAPTER` names, or the best hardware one; an error if there is
    /// none.
    #[cfg(not(target_family = "wasm"))]
    pub fn gpu() -> Result<Device> {
        let found = Gpu::find(None)?.map(Device::Gpu);
        found.ok_or_else(|| {
            let adapters = crate::gpu::list(&pollster::block_on(crate::gpu::adapters()));
            let why = format!("there is no GPU; {adapters}, and software is used only when named");
            Error::Device { op: "gpu", why }
        })
    }

    /// A GPU by its number or a part of its name, as `taipan devices` shows them; it may be a
    /// software GPU.
    ///
    /// ```
    /// let error = taipan::Device::gpu_named("no such thing").unwrap_err();
    /// assert!(error.to_string().starts_with("gpu: no adapter is \"no such thing\"; found"));
    /// ```
    #[cfg(not(target_family = "wasm"))]
    pub fn gpu_named(name: &str) -> Result<Device> {
        let found = Gpu::find(Some(name))?;
        Ok(Device::Gpu(found.expect("a name that is not found is an error")))
    }

    /// `"cpu"` or `"gpu"`.
    pub fn name(&self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Gpu(_) => "gpu",
        }
    }

    /// A name that distinguishes devices.
    pub(crate) fn full_name(&self) -> String {
        match self {
            Device::Cpu => "cpu".into(),
            Device::Gpu(gpu) => format!("gpu {}", gpu.name()),
        }
    }

    /// An error unless `self`, where `op`'s input `name` is, is `expected`.
    pub(crate) fn ensure(&self, expected: &Device, op: &'static str, name: &str) -> Result<()> {
        if self == expected {
            return Ok(());
        }
        let why = format!("{name} is on {}, expected {}", self.full_name(), expected.full_name());
        Err(Error::Device { op, why })
    }

    /// An error unless the device supports tensors of this type.
    pub(crate) fn ensure_type(&self, op: &'static str, dtype: DType) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Gpu(gpu) => gpu.ensure_type(op, "the element type", dtype),
        }
    }

    /// Whether the device computes in this type: the CPU in all, in a browser in `f32` and integers;
    /// a GPU in `f32`, `u32` and, with the feature `SHADER_F16`, `f16`.
    pub fn supports(&self, dtype: DType) -> bool {
        match self {
            #[cfg(all(target_family = "wasm", not(feature = "check")))]
            Device::Cpu => !dtype.is_float() || dtype == DType::F32,
            #[cfg(any(not(target_family = "wasm"), feature = "check"))]
            Device::Cpu => true,
            Device::Gpu(gpu) => gpu.supports(dtype),
        }
    }

    /// The memory of tensors on this device. That of the CPU is counted for the whole process, without
    /// what is in an [`Arena`](crate::Arena).
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let weights = Tensor::zeros(&[1024, 1024], DType::F32, &Device::Cpu)?;
    /// assert!(Device::Cpu.memory().used >= 4 << 20);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn memory(&self) -> Memory {
        match self {
            Device::Cpu => crate::cpu::buffer::memory(),
            Device::Gpu(gpu) => gpu.memory(),
        }
    }

    /// A description for people: for the CPU, its vector instructions and threads.
    ///
    /// ```
    /// println!("{}", taipan::Device::Cpu.describe()); // cpu, avx2, threads: 8
    /// ```
    pub fn describe(&self) -> String {
        match self {
            Device::Cpu => format!(
                "cpu, {}, threads: {}",
                crate::cpu::isa::Level::current().name(),
                crate::cpu::threads::count()
            ),
            Device::Gpu(gpu) => format!("gpu, {}, {}", gpu.name(), gpu.info().backend),
        }
    }
}

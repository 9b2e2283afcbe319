//! GPUs through WebGPU: Vulkan, Metal, DX12 and browsers. Independent of the ops.
//!
//! Most programs need only [`Device::gpu`] or [`Device::best`](crate::Device::best). This module is
//! for programs that choose among adapters ([`adapters`], [`Gpu::open`]), monitor memory
//! ([`Gpu::memory`]) or have a wgpu device of their own ([`Gpu::on`],
//! [`Tensor::from_wgpu`](crate::Tensor::from_wgpu)).
//!
//! In a browser nothing may block, and a device is opened like this:
//!
//! ```no_run
//! # async fn open() -> taipan::Result<()> {
//! use taipan::gpu::{Capabilities, Gpu, adapters};
//! use taipan::{DType, Device, Tensor};
//!
//! let device = match adapters().await.first() {
//!     Some(adapter) => Device::Gpu(Gpu::open(adapter, Capabilities::Full).await?),
//!     None => Device::Cpu,
//! };
//! let x = Tensor::ones(&[2, 2], DType::F32, &device)?;
//! assert_eq!(x.sum()?.read::<f32>().await?, [4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Launches go to a command stream and are submitted in batches: when a value is read, when a batch
//! is full, or by [`Gpu::flush`]. An error of the device is stored and returned by the next call
//! that can fail; a device-side index error, by the next read of a value.
//!
//! A tensor may be as large as a buffer. Where that is larger than a binding
//! (`max_storage_buffer_binding_size`, often 128 MiB), these are split over several launches:
//! constants, element-wise functions and arithmetic without broadcasting, casts, slices and joins
//! along the first dimension, reductions of all elements, dropout, what is looked up by
//! [`embedding`](crate::embedding) and `index_select`,
//! [`linear_cross_entropy`](crate::linear_cross_entropy), and [`linear`](crate::linear) without its
//! backward pass; the last two with [`Weight::nk`](crate::Weight::nk). Other operations return an
//! error that names the limit.

mod adapter;
mod buffer;
#[cfg(not(target_family = "wasm"))]
mod clock;
#[cfg(not(target_family = "wasm"))]
mod disk;
mod exp2;
mod fault;
mod fill;
pub(crate) mod gemm;
#[cfg(all(test, feature = "check", not(target_family = "wasm")))]
mod hardware;
mod index_errors;
mod launch;
pub(crate) mod map;
mod program;
mod reduce;
#[cfg(not(target_family = "wasm"))]
mod roofline;
mod stream;
mod strided;
mod time_limit;
mod windows;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

#[cfg(not(target_family = "wasm"))]
pub use self::adapter::fitting_adapters;
#[cfg(not(target_family = "wasm"))]
pub(crate) use self::adapter::list;
pub use self::adapter::{Capabilities, adapters};
use self::buffer::Buffers;
pub(crate) use self::buffer::{Binding, GpuBuffer, GpuView, LocalTensor};
use self::fault::Faults;
pub(crate) use self::index_errors::INDEX_ERRORS;
use self::index_errors::IndexErrors;
use self::launch::{MOST_BUFFERS, Programs};
pub(crate) use self::map::{Elements, MapParams};
pub(crate) use self::program::{
    Dims, ELEMENTS, FLOAT_ORDER, GREATEST, GROUP, GROUPS, Grid, LINES, Launch, MATH, MAX_SUM_EXP,
    Params, Program, SUM, TENSORS, THREEFRY, WORKGROUP, kernel_sizes, params, width,
};
#[cfg(test)]
pub(crate) use self::program::{MAX_TENSORS, WIDTHS};
use self::stream::CommandStream;
pub(crate) use self::strided::{Strided, dims_of};
use self::time_limit::Rate;
use crate::error::{Error, Result};
use crate::pool::Memory;
use crate::{DType, Device};

/// Elements are indexed by `u32`, and the smallest is two bytes: every element within this limit
/// can be indexed.
const MOST_BYTES: u64 = (1 << 32) - 256;

/// An open GPU. Clones share it; dropping the last one closes it.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    limits: wgpu::Limits,
    f16: bool,
    rate: Rate,
    faults: Arc<Faults>,
    buffers: Mutex<Buffers>,
    programs: Mutex<Programs>,
    stream: Mutex<CommandStream>,
    index_errors: IndexErrors,
    accurate_exp2: OnceLock<bool>,
}

/// Counters since the GPU was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Dispatches of kernels; a long launch is split into several.
    pub launches: u64,
    /// Batches submitted.
    pub submissions: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// How long that took, with what a cache on disk saved; 0 in a browser, which compiles later.
    pub compile_time: Duration,
    /// Buffers allocated, without those reused from the pool.
    pub allocations: u64,
    /// Bytes of the buffers that launches read or write, each counted once in a launch.
    pub bytes: u64,
}

impl Gpu {
    /// taipan on a device and queue that the program owns, with the limits and features of the
    /// device, which must be WebGPU's defaults or more. The device keeps its own handlers for
    /// errors and for its loss.
    ///
    /// ```no_run
    /// # fn run(device: wgpu::Device, queue: wgpu::Queue) -> taipan::Result<()> {
    /// use taipan::gpu::Gpu;
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let device = Device::Gpu(Gpu::on(&device, &queue)?);
    /// let x = Tensor::ones(&[2, 2], DType::F32, &device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Gpu> {
        let gpu = Gpu::new(device.clone(), queue.clone(), Arc::default())?;
        // In a browser this cannot wait.
        #[cfg(not(target_family = "wasm"))]
        pollster::block_on(gpu.measure_exp2())?;
        Ok(gpu)
    }

    fn new(device: wgpu::Device, queue: wgpu::Queue, faults: Arc<Faults>) -> Result<Gpu> {
        let (mut limits, info) = (device.limits(), device.adapter_info());
        for (limit, found, least) in [
            (
                "max_storage_buffers_per_shader_stage",
                limits.max_storage_buffers_per_shader_stage,
                MOST_BUFFERS,
            ),
            (
                "max_compute_invocations_per_workgroup",
                limits.max_compute_invocations_per_workgroup,
                256,
            ),
            ("max_compute_workgroup_size_x", limits.max_compute_workgroup_size_x, 256),
            (
                "max_compute_workgroup_storage_size",
                limits.max_compute_workgroup_storage_size,
                16 << 10,
            ),
            (
                "max_compute_workgroups_per_dimension",
                limits.max_compute_workgroups_per_dimension,
                65_535,
            ),
        ] {
            if (found as usize) < least {
                let why = format!("{limit} of the device is {found}, expected at least {least}");
                return Err(Error::Device { op: "gpu", why });
            }
        }
        let binding = &mut limits.max_storage_buffer_binding_size;
        *binding = (*binding).min(MOST_BYTES);
        Ok(Gpu(Arc::new(Inner {
            f16: device.features().contains(wgpu::Features::SHADER_F16),
            rate: Rate::of(info.device_type),
            programs: Mutex::new(Programs::new(&device, &info)),
            stream: Mutex::new(CommandStream::new(&device)),
            buffers: Mutex::new(Buffers::new()),
            index_errors: IndexErrors::new(&device),
            accurate_exp2: OnceLock::new(),
            device,
            queue,
            info,
            limits,
            faults,
        })))
    }

    /// The name of the adapter; browsers do not tell it.
    pub fn name(&self) -> &str {
        match self.0.info.name.as_str() {
            "" => "unnamed",
            name => name,
        }
    }

    /// The adapter, its driver and its backend.
    pub fn info(&self) -> &wgpu::AdapterInfo {
        &self.0.info
    }

    /// The limits of tensors and kernels.
    pub fn limits(&self) -> &wgpu::Limits {
        &self.0.limits
    }

    /// The device, for other passes of the program. Call [`flush`](Gpu::flush) before submitting
    /// them.
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    /// The queue everything is submitted to.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    /// The memory of tensors.
    pub fn memory(&self) -> Memory {
        lock(&self.0.buffers).memory()
    }

    /// Counters since the GPU was opened.
    pub fn work(&self) -> Work {
        let (launches, submissions, bytes) = lock(&self.0.stream).counts();
        let (pipelines, compile_time) = lock(&self.0.programs).compiled();
        let allocations = lock(&self.0.buffers).allocations();
        Work { launches, submissions, pipelines, compile_time, allocations, bytes }
    }

    /// Submit pending launches: later submissions to the [`queue`](Gpu::queue) see their results.
    pub fn flush(&self) -> Result<()> {
        lock(&self.0.stream).submit(&self.0);
        self.check("flush")
    }

    /// The size of subgroups, if kernels may use them and all have the same size. Kernels then
    /// assume that a subgroup is a range of neighbouring invocations, as on every known adapter.
    pub(crate) fn subgroup_size(&self) -> Option<u32> {
        let (least, most) = (self.0.info.subgroup_min_size, self.0.info.subgroup_max_size);
        let usable = self.0.device.features().contains(wgpu::Features::SUBGROUP) && least == most;
        (usable && !cfg!(target_family = "wasm")).then_some(least)
    }

    /// Whether it computes on the CPU.
    pub(crate) fn is_software(&self) -> bool {
        self.0.info.device_type == wgpu::DeviceType::Cpu
    }

    pub(crate) fn supports(&self, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::U32) || dtype == DType::F16 && self.0.f16
    }

    /// An error unless the adapter supports tensors of this type.
    pub(crate) fn ensure_type(
        &self,
        op: &'static str,
        name: &'static str,
        dtype: DType,
    ) -> Result<()> {
        if self.supports(dtype) {
            return Ok(());
        }
        let expected = match (dtype, self.0.f16) {
            (DType::F16, _) => {
                format!("f32 or u32: the GPU {} lacks the feature SHADER_F16", self.name())
            }
            (_, true) => "f32, f16 or u32, which is what GPUs have".into(),
            (_, false) => "f32 or u32, which is what this GPU has".into(),
        };
        Err(Error::DType { op, name, found: dtype, expected })
    }

    #[cfg(not(target_family = "wasm"))]
    fn is_lost(&self) -> bool {
        let _ = self.0.device.poll(wgpu::PollType::Poll);
        self.0.faults.is_lost()
    }

    /// Return an error that occurred since the last check.
    fn check(&self, op: &'static str) -> Result<()> {
        // Natively, a lost device is reported only while it is polled.
        #[cfg(not(target_family = "wasm"))]
        let _ = self.0.device.poll(wgpu::PollType::Poll);
        self.0.faults.check(op)
    }
}

/// Whether both are the same open GPU.
impl PartialEq for Gpu {
    fn eq(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.name())
    }
}

impl From<Gpu> for Device {
    fn from(gpu: Gpu) -> Device {
        Device::Gpu(gpu)
    }
}

/// Every program of this module.
#[cfg(test)]
pub(crate) fn programs(types: &[DType]) -> Vec<Program> {
    let floats = || types.iter().copied().filter(|dtype| dtype.is_float());
    [fill::program(), exp2::program()]
        .into_iter()
        .chain(roofline::programs())
        .chain(types.iter().map(|&dtype| strided::program(dtype)))
        .chain(floats().flat_map(map::programs))
        .chain(floats().flat_map(reduce::programs))
        .chain(floats().flat_map(gemm::programs))
        .collect()
}

/// Ignores poisoning: the data is consistent after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

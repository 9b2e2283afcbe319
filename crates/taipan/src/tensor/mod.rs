//! Dense arrays on a device.

mod arena;
mod display;
mod random;

use std::sync::Arc;

#[cfg(not(target_family = "wasm"))]
use pollster::block_on;

pub use self::arena::Arena;
use crate::Device;
use crate::autograd::{Edge, Exchange, add_node};
#[cfg(all(target_family = "wasm", feature = "check"))]
use crate::check::block_on;
use crate::cpu::{CpuBuffer, SharedBuffer};
use crate::dtype::{DType, Element, with_dtype};
use crate::error::{Error, Result, ensure};
#[cfg(feature = "gpu")]
use crate::gpu::Gpu;
use crate::gpu::GpuBuffer;
use crate::spec::Spec;

/// A dense, row-major array of numbers on one device. Cloning shares the data.
///
/// ```
/// use taipan::{Device, Tensor};
///
/// let x = Tensor::new(&[1f32, 2.0, 3.0, 4.0], &[2, 2], &Device::Cpu)?;
/// let y = x.mul(&x)?.sum_dims(&[1])?; // [2]
/// assert_eq!(y.read_blocking::<f32>()?, [5.0, 25.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
///
/// # Operators
///
/// `+`, `-`, `*` and `/` are [`add`](Tensor::add), [`sub`](Tensor::sub), [`mul`](Tensor::mul) and
/// [`div`](Tensor::div), between tensors or references to them, and numbers on either side. Shapes
/// may not match, so the result is a [`Result`]: `?` after each operator is always right. Between
/// a result and a tensor it can be left out, not between two results or with a number: the first
/// error of a chain is what the chain returns.
///
/// ```
/// use taipan::{Device, Tensor};
///
/// let x = Tensor::new(&[1f32, 2.0, 3.0], &[3], &Device::Cpu)?;
/// let w = Tensor::new(&[2f32, 0.0, 1.0], &[3], &Device::Cpu)?;
/// let y = (&x * &w + &x)?;
/// assert_eq!(y.read_blocking::<f32>()?, [3.0, 2.0, 6.0]);
/// let z = (2.0 - ((-&x)? / 2.0)?)?;
/// assert_eq!(z.read_blocking::<f32>()?, [2.5, 3.0, 3.5]);
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    pub(crate) spec: Spec,
    pub(crate) storage: Storage,
    pub(crate) edge: Option<Edge>,
}

/// Where the elements are.
#[derive(Clone)]
pub(crate) enum Storage {
    Cpu(SharedBuffer),
    Gpu(Arc<GpuBuffer>),
}

/// A value before its conversion to an element.
#[derive(Clone, Copy)]
enum Constant {
    Float(f64),
    Int(i64),
}

impl Constant {
    fn to<T: Element>(self) -> T {
        match self {
            Constant::Float(value) => T::of_f64(value),
            Constant::Int(value) => T::of_i64(value),
        }
    }
}

impl Tensor {
    pub(crate) fn of(spec: Spec, storage: Storage) -> Tensor {
        Tensor { spec, storage, edge: None }
    }

    /// Whether other tensors have the same memory.
    pub(crate) fn is_shared(&self) -> bool {
        match &self.storage {
            Storage::Cpu(data) => data.is_shared(),
            Storage::Gpu(data) => Arc::strong_count(data) > 1,
        }
    }

    /// A tensor of the given shape, filled row by row from `data`.
    pub fn new<T: Element>(data: &[T], shape: &[usize], device: &Device) -> Result<Tensor> {
        const OP: &str = "tensor";
        let spec = Spec::new(OP, shape, T::DTYPE)?;
        ensure!(
            OP,
            spec.len() == data.len(),
            "{} values found, expected {} for {shape:?}",
            data.len(),
            spec.len()
        );
        device.ensure_type(OP, T::DTYPE)?;
        let storage = match device {
            Device::Cpu => {
                let buffer = device.span(OP, "", || CpuBuffer::from_slice(OP, data))?;
                Storage::Cpu(buffer.into())
            }
            Device::Gpu(gpu) => Storage::Gpu(Arc::new(gpu.upload(OP, bytemuck::cast_slice(data))?)),
        };
        Ok(Tensor::of(spec, storage))
    }

    /// A tensor whose elements all are `value`, rounded to `dtype`.
    pub fn full(shape: &[usize], value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::constant("full", shape, dtype, device, Constant::Float(value))
    }

    /// A tensor of zeros.
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::constant("zeros", shape, dtype, device, Constant::Int(0))
    }

    /// A tensor of ones.
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::constant("ones", shape, dtype, device, Constant::Int(1))
    }

    /// The whole numbers `start, start + 1, … end - 1` as a `[end - start]` tensor, each converted
    /// to `dtype` as [`cast`](Tensor::cast) does.
    pub fn arange(start: i64, end: i64, dtype: DType, device: &Device) -> Result<Tensor> {
        const OP: &str = "arange";
        ensure!(OP, start <= end, "the range {start}..{end} runs backwards");
        let len = usize::try_from(end.abs_diff(start)).unwrap_or(usize::MAX);
        Tensor::from_fn(OP, &[len], dtype, device, |i| Constant::Int(start + i as i64))
    }

    /// A tensor whose elements all are `value`, converted to `dtype`. On a GPU nothing is uploaded.
    fn constant(
        op: &'static str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
        value: Constant,
    ) -> Result<Tensor> {
        let Device::Gpu(gpu) = device else {
            return Tensor::from_fn(op, shape, dtype, device, |_| value);
        };
        let spec = Spec::new(op, shape, dtype)?;
        device.ensure_type(op, dtype)?;
        let mut word = [0; 4];
        with_dtype!(dtype, T: Element => {
            let element = value.to::<T>();
            word.chunks_mut(size_of::<T>()).for_each(|bytes| {
                bytes.copy_from_slice(&bytemuck::bytes_of(&element)[..bytes.len()])
            })
        });
        let buffer = gpu.span(op, "", || {
            let buffer = gpu.scratch(op, spec.bytes())?;
            gpu.fill(op, &buffer, u32::from_le_bytes(word))?;
            Ok(buffer)
        })?;
        Ok(Tensor::of(spec, Storage::Gpu(Arc::new(buffer))))
    }

    /// A tensor whose element `i`, counted row by row, is `f(i)`, converted to `dtype`.
    fn from_fn(
        op: &'static str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
        f: impl Fn(usize) -> Constant + Sync,
    ) -> Result<Tensor> {
        use crate::cpu::threads::{GRAIN, for_chunks};
        let spec = Spec::new(op, shape, dtype)?;
        device.ensure_type(op, dtype)?;
        let buffer = Device::Cpu.span(op, "", || {
            let mut buffer = CpuBuffer::scratch(op, spec.bytes())?;
            with_dtype!(dtype, T: Element => {
                for_chunks(buffer.as_mut_slice::<T>(), GRAIN, |start, chunk| {
                    for (i, x) in chunk.iter_mut().enumerate() {
                        *x = f(start + i).to();
                    }
                })
            });
            Ok(buffer)
        })?;
        Tensor::of(spec, Storage::Cpu(buffer.into())).to(device)
    }

    /// The sizes of the dimensions, outermost first; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        self.spec.shape()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// The number of elements.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.spec.len()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.spec.dtype()
    }

    /// Where the elements are.
    pub fn device(&self) -> &Device {
        match &self.storage {
            Storage::Cpu(_) => &Device::Cpu,
            Storage::Gpu(buffer) => buffer.device(),
        }
    }

    /// The same values on `device`; shares the data if they are there already. Gradients flow back
    /// to the original device. From a GPU this blocks, which a browser does not allow: there, use
    /// [`read`](Tensor::read).
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        const OP: &str = "to";
        let from = self.device();
        if from == device {
            return Ok(self.clone());
        }
        device.ensure_type(OP, self.dtype())?;
        let storage = match (&self.storage, device) {
            (Storage::Cpu(buffer), Device::Gpu(gpu)) => {
                Storage::Gpu(Arc::new(gpu.upload(OP, buffer.bytes())?))
            }
            (Storage::Cpu(_), Device::Cpu) => unreachable!("the same device"),
            #[cfg(not(target_family = "wasm"))]
            (Storage::Gpu(buffer), _) => {
                let mut host = CpuBuffer::scratch(OP, self.spec.bytes())?;
                from.span("read", "", || block_on(buffer.read(OP, host.bytes_mut())))?;
                let host = Tensor::of(self.spec.clone(), Storage::Cpu(host.into()));
                host.to(device)?.storage
            }
            #[cfg(target_family = "wasm")]
            (Storage::Gpu(_), _) => {
                let why = "the tensor is on a GPU, for which a browser may not wait; read it";
                return Err(crate::error::Error::Device { op: OP, why: why.into() });
            }
        };
        let mut result = [Tensor::of(self.spec.clone(), storage)];
        let from = from.clone();
        let backward = move |dys: &[Tensor], _: &mut Exchange| Ok(vec![Some(dys[0].to(&from)?)]);
        add_node(OP, &[self], &mut result, backward);
        let [result] = result;
        Ok(result)
    }

    /// Copy the values to the host, row by row. Waits for the device.
    pub async fn read<T: Element>(&self) -> Result<Vec<T>> {
        const OP: &str = "read";
        T::DTYPE.ensure(self.dtype(), OP, "the type asked for")?;
        match &self.storage {
            Storage::Cpu(buffer) => Ok(buffer.as_slice::<T>().to_vec()),
            Storage::Gpu(buffer) => {
                let mut values = vec![T::of_i64(0); self.len()];
                buffer.read(OP, bytemuck::cast_slice_mut(&mut values)).await?;
                Ok(values)
            }
        }
    }

    /// The bytes of the elements, row by row, without a copy. The tensor must be on the CPU: from a
    /// GPU, [`to`](Tensor::to) copies it there.
    ///
    /// ```
    /// let x = taipan::Tensor::new(&[1u32, 2], &[2], &taipan::Device::Cpu)?;
    /// assert_eq!(x.bytes()?, [1, 0, 0, 0, 2, 0, 0, 0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn bytes(&self) -> Result<&[u8]> {
        match &self.storage {
            Storage::Cpu(buffer) => Ok(buffer.bytes()),
            Storage::Gpu(_) => {
                let why = format!("the tensor is on {}, expected cpu", self.device().full_name());
                Err(Error::Device { op: "bytes", why })
            }
        }
    }

    /// The first elements of a buffer that the program owns, without a copy. The program must not
    /// change it while tensors use it; its usage must include `STORAGE` and `COPY_SRC`, and it must
    /// belong to the device of `gpu`.
    #[cfg(feature = "gpu")]
    pub fn from_wgpu(
        gpu: &Gpu,
        buffer: &wgpu::Buffer,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Tensor> {
        const OP: &str = "from_wgpu";
        let spec = Spec::new(OP, shape, dtype)?;
        gpu.ensure_type(OP, "the element type", dtype)?;
        let buffer = GpuBuffer::foreign(OP, gpu, buffer.clone(), spec.bytes())?;
        Ok(Tensor::of(spec, Storage::Gpu(Arc::new(buffer))))
    }

    /// The buffer that begins with this tensor's elements, for other passes on the same queue to
    /// read: pending launches are submitted. It may be longer than the tensor, and is reused once
    /// the tensor and its clones are dropped.
    #[cfg(feature = "gpu")]
    pub fn wgpu_buffer(&self) -> Result<&wgpu::Buffer> {
        match (&self.storage, self.device()) {
            (Storage::Gpu(buffer), Device::Gpu(gpu)) => {
                gpu.flush()?;
                match buffer.at(0) {
                    (buffer, 0) => Ok(buffer),
                    (_, at) => {
                        let why = format!("the tensor is at byte {at} of its buffer, expected 0");
                        Err(Error::Device { op: "wgpu_buffer", why })
                    }
                }
            }
            _ => {
                let why = "the tensor is on cpu, expected a GPU".into();
                Err(Error::Device { op: "wgpu_buffer", why })
            }
        }
    }

    /// [`read`](Tensor::read) for native callers; absent on the web, where nothing may block but
    /// tests.
    #[cfg(any(not(target_family = "wasm"), feature = "check"))]
    pub fn read_blocking<T: Element>(&self) -> Result<Vec<T>> {
        self.device().span("read", "", || block_on(self.read()))
    }

    /// The value of a one-element tensor of any type, an `i64` rounded to an f64; absent on the
    /// web, like [`read_blocking`](Tensor::read_blocking).
    #[cfg(any(not(target_family = "wasm"), feature = "check"))]
    pub fn item(&self) -> Result<f64> {
        ensure!("item", self.len() == 1, "the tensor is {:?}, expected one element", self.shape());
        with_dtype!(self.dtype(), T: Element => Ok(match &self.storage {
            Storage::Cpu(buffer) => {
                Device::Cpu.span("read", "", || buffer.as_slice::<T>()[0].to_f64())
            }
            Storage::Gpu(_) => self.read_blocking::<T>()?[0].to_f64(),
        }))
    }
}

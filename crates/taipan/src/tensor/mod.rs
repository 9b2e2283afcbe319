//! Dense arrays on a device.

mod display;
mod random;

use std::sync::Arc;

use crate::Device;
use crate::autograd::Edge;
use crate::cpu::CpuBuffer;
use crate::dtype::{DType, Element, with_dtype};
use crate::error::{Result, ensure};
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
#[derive(Clone)]
pub struct Tensor {
    pub(crate) spec: Spec,
    pub(crate) storage: Storage,
    pub(crate) edge: Option<Edge>,
}

/// Where the elements are.
#[derive(Clone)]
pub(crate) enum Storage {
    Cpu(Arc<CpuBuffer>),
}

/// A value before it is converted to an element.
enum Number {
    Float(f64),
    Int(i64),
}

impl Tensor {
    pub(crate) fn of(spec: Spec, storage: Storage) -> Tensor {
        Tensor { spec, storage, edge: None }
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
        let storage = match device {
            Device::Cpu => Storage::Cpu(Arc::new(CpuBuffer::from_slice(OP, data)?)),
        };
        Ok(Tensor::of(spec, storage))
    }

    /// A tensor whose elements all are `value`, rounded to `dtype`.
    pub fn full(shape: &[usize], value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::from_fn("full", shape, dtype, device, |_| Number::Float(value))
    }

    /// A tensor of zeros.
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::from_fn("zeros", shape, dtype, device, |_| Number::Int(0))
    }

    /// A tensor of ones.
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::from_fn("ones", shape, dtype, device, |_| Number::Int(1))
    }

    /// The whole numbers `start, start + 1, … end - 1` as a `[end - start]` tensor, each converted
    /// to `dtype` as [`cast`](Tensor::cast) does.
    pub fn arange(start: i64, end: i64, dtype: DType, device: &Device) -> Result<Tensor> {
        const OP: &str = "arange";
        ensure!(OP, start <= end, "the range {start}..{end} runs backwards");
        let len = usize::try_from(end.abs_diff(start)).unwrap_or(usize::MAX);
        Tensor::from_fn(OP, &[len], dtype, device, |i| Number::Int(start + i as i64))
    }

    /// A tensor whose element `i`, counted row by row, is `f(i)`, converted to `dtype`.
    fn from_fn(
        op: &'static str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
        f: impl Fn(usize) -> Number + Sync,
    ) -> Result<Tensor> {
        use crate::cpu::threads::{GRAIN, for_pieces};
        let spec = Spec::new(op, shape, dtype)?;
        let mut buffer = CpuBuffer::scratch(op, spec.bytes())?;
        with_dtype!(dtype, T: Element => for_pieces(buffer.of_mut::<T>(), GRAIN, |start, piece| {
            for (i, x) in piece.iter_mut().enumerate() {
                *x = match f(start + i) {
                    Number::Float(value) => T::of_f64(value),
                    Number::Int(value) => T::of_i64(value),
                };
            }
        }));
        Tensor::of(spec, Storage::Cpu(Arc::new(buffer))).to(device)
    }

    /// The sizes of the dimensions, outermost first; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        self.spec.shape()
    }

    /// How many dimensions.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// How many elements.
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
        }
    }

    /// The same values on `device`; shares them when they are there already.
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        match (&self.storage, device) {
            (Storage::Cpu(_), Device::Cpu) => Ok(self.clone()),
        }
    }

    /// Copy the values to the host, row by row. The one operation that waits for the device.
    pub async fn read<T: Element>(&self) -> Result<Vec<T>> {
        T::DTYPE.ensure(self.dtype(), "read", "the type asked for")?;
        match &self.storage {
            Storage::Cpu(buffer) => Ok(buffer.of::<T>().to_vec()),
        }
    }

    /// [`read`](Tensor::read) for native callers; absent on the web, where nothing may block.
    #[cfg(not(target_family = "wasm"))]
    pub fn read_blocking<T: Element>(&self) -> Result<Vec<T>> {
        pollster::block_on(self.read())
    }

    /// The value of a one-element tensor of any type, an `i64` rounded to an f64; absent on the web, like
    /// [`read_blocking`](Tensor::read_blocking).
    #[cfg(not(target_family = "wasm"))]
    pub fn item(&self) -> Result<f64> {
        ensure!("item", self.len() == 1, "the tensor is {:?}, expected one element", self.shape());
        with_dtype!(self.dtype(), T: Element => Ok(self.read_blocking::<T>()?[0].to_f64()))
    }
}

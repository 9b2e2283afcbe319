//! Slices of a tensor along a dimension.

use std::ops::Range;

use smallvec::smallvec;

use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::dtype::{Element, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{GpuView, Strided};
use crate::grad_mode;
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one, update};
use crate::spec::{Shape, Spec, ensure_dim};
use crate::tensor::Tensor;

impl Tensor {
    /// The elements whose index along `dim` is in `range`. Copies.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let x = Tensor::arange(0, 6, DType::U32, &Device::Cpu)?.reshape(&[2, 3])?;
    /// assert_eq!(x.slice(1, 1..3)?.read_blocking::<u32>()?, [1, 2, 4, 5]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn slice(&self, dim: usize, range: Range<usize>) -> Result<Tensor> {
        apply_one(Slice { dim, range }, &[self])
    }

    /// Overwrite the elements from index `start` along `dim` on with `slice`, in place: for caches.
    /// Another tensor that shares the memory keeps its values, by a copy. There is no gradient: an
    /// error outside of [`no_grad`](crate::no_grad) if one of the two is tracked.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let mut cache = Tensor::zeros(&[2, 3], DType::U32, &Device::Cpu)?;
    /// cache.write_slice(1, 1, &Tensor::new(&[5u32, 6], &[2, 1], &Device::Cpu)?)?;
    /// assert_eq!(cache.read_blocking::<u32>()?, [0, 5, 0, 0, 6, 0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn write_slice(&mut self, dim: usize, start: usize, slice: &Tensor) -> Result<()> {
        const OP: &str = "write_slice";
        let (whole, found) = (self.shape().to_vec(), slice.shape());
        ensure_dim(OP, dim, &whole)?;
        slice.dtype().ensure(self.dtype(), OP, "the slice")?;
        let mut expected = whole.clone();
        expected[dim] = found.get(dim).copied().unwrap_or(0);
        ensure!(OP, found == expected, "the slice is {found:?}, expected {expected:?}");
        let end = start.saturating_add(expected[dim]);
        ensure!(OP, end <= whole[dim], "{start}..{end} is not within dimension {dim} of {whole:?}");
        let tracked = grad_mode::is_enabled() && (self.edge.is_some() || slice.edge.is_some());
        ensure!(OP, !tracked, "a tensor is tracked, expected no_grad");
        self.write(slice, start..end, DimSplit::new(&whole, dim))
    }

    /// Overwrite the elements from `start` on, counted row by row, with those of `elements`,
    /// whatever its shape, in place. What [`write_slice`](Tensor::write_slice) says of gradients and
    /// of shared memory holds here, except that a tracked tensor remains the leaf it is: for a
    /// parameter whose value comes from elsewhere.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let mut w = Tensor::zeros(&[2, 3], DType::U32, &Device::Cpu)?;
    /// w.write_elements(2, &Tensor::new(&[5u32, 6], &[2], &Device::Cpu)?)?;
    /// assert_eq!(w.read_blocking::<u32>()?, [0, 0, 5, 6, 0, 0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn write_elements(&mut self, start: usize, elements: &Tensor) -> Result<()> {
        const OP: &str = "write_elements";
        elements.dtype().ensure(self.dtype(), OP, "what is written")?;
        let (len, end) = (self.len(), start.saturating_add(elements.len()));
        ensure!(OP, end <= len, "{start}..{end} is not within the {len} elements");
        self.write(elements, start..end, DimSplit::new(&[len], 0))
    }

    /// Overwrite indices along a dimension, as [`DimSplit`] sees the tensor.
    fn write(&mut self, slice: &Tensor, range: Range<usize>, split: DimSplit) -> Result<()> {
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            with_dtype!(inputs[0].spec.dtype(), T: Bits => {
                let out = outputs[0].as_mut_slice::<T>();
                split.put(inputs[0].as_slice::<T>(), range.clone(), out)
            });
            Ok(())
        };
        let gpu = |io: GpuIo| split.put_on_gpu(io, &io.inputs[0], range.clone());
        update(("write_slice", ""), &[slice], &mut [self], cpu, gpu)
    }
}

struct Slice {
    dim: usize,
    range: Range<usize>,
}

impl Op for Slice {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// `dy` inside the range, zero outside.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let whole = saved.specs[0].clone();
        let split = DimSplit::new(whole.shape(), self.dim);
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            with_dtype!(inputs[0].spec.dtype(), T: Bits => {
                let out = outputs[0].as_mut_slice::<T>();
                out.fill(T::of_f64(0.0));
                split.put(inputs[0].as_slice::<T>(), self.range.clone(), out)
            });
            Ok(())
        };
        let gpu = |io: GpuIo| {
            io.gpu.fill(io.op, io.outputs[0].data, 0)?;
            split.put_on_gpu(io, &io.inputs[0], self.range.clone())
        };
        Ok(vec![Some(compute_one((self.name(), "backward"), &[&dys[0]], whole, cpu, gpu)?)])
    }
}

impl Kernel for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let Slice { dim, range } = self;
        let mut shape = Shape::from(inputs[0].shape());
        ensure_dim(self.name(), *dim, &shape)?;
        ensure!(
            self.name(),
            range.start <= range.end && range.end <= shape[*dim],
            "{range:?} is not within dimension {dim} of {shape:?}"
        );
        shape[*dim] = range.len();
        Ok(smallvec![Spec::new(self.name(), &shape, inputs[0].dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let split = DimSplit::new(inputs[0].spec.shape(), self.dim);
        with_dtype!(inputs[0].spec.dtype(), T: Bits => {
            let out = outputs[0].as_mut_slice::<T>();
            split.take(inputs[0].as_slice::<T>(), self.range.clone(), out)
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let split = DimSplit::new(io.inputs[0].spec.shape(), self.dim);
        split.take_on_gpu(io, &io.inputs[0], &io.outputs[0], self.range.clone())
    }
}

/// A tensor as `[outer, len, inner]` around one dimension: each outer index has a run of
/// `len·inner` contiguous elements.
pub(super) struct DimSplit {
    outer: usize,
    pub(super) run: usize,
    pub(super) inner: usize,
}

impl DimSplit {
    pub(super) fn new(shape: &[usize], dim: usize) -> DimSplit {
        let inner = shape[dim + 1..].iter().product();
        DimSplit { outer: shape[..dim].iter().product(), run: shape[dim] * inner, inner }
    }

    /// Whether ranges of the dimension are contiguous.
    pub(super) fn is_dense(&self) -> bool {
        self.outer == 1
    }

    /// Copy the indices `range` of `whole` to `slice`.
    pub(super) fn take<T: Element>(&self, whole: &[T], range: Range<usize>, slice: &mut [T]) {
        let at = range.start * self.inner..range.end * self.inner;
        if !at.is_empty() {
            for (slice, whole) in slice.chunks_mut(at.len()).zip(whole.chunks(self.run)) {
                slice.copy_from_slice(&whole[at.clone()]);
            }
        }
    }

    /// Copy `slice` to the indices `range` of `whole`.
    pub(super) fn put<T: Element>(&self, slice: &[T], range: Range<usize>, whole: &mut [T]) {
        let at = range.start * self.inner..range.end * self.inner;
        if !at.is_empty() {
            for (slice, whole) in slice.chunks(at.len()).zip(whole.chunks_mut(self.run)) {
                whole[at.clone()].copy_from_slice(slice);
            }
        }
    }

    /// [`take`](DimSplit::take) on a GPU.
    pub(super) fn take_on_gpu(
        &self,
        GpuIo { op, gpu, .. }: GpuIo,
        whole: &GpuView,
        slice: &GpuView,
        range: Range<usize>,
    ) -> Result<()> {
        let (len, from) = (range.len() * self.inner, range.start * self.inner);
        let dims = vec![[self.outer, self.run, len], [len, 1, 1]];
        gpu.copy(op, whole, slice, Strided { dims, from, to: 0 })
    }

    /// [`put`](DimSplit::put) on a GPU, to the first output.
    pub(super) fn put_on_gpu(&self, io: GpuIo, slice: &GpuView, range: Range<usize>) -> Result<()> {
        let (len, to) = (range.len() * self.inner, range.start * self.inner);
        let dims = vec![[self.outer, len, self.run], [len, 1, 1]];
        io.gpu.copy(io.op, slice, &io.outputs[0], Strided { dims, from: 0, to })
    }
}

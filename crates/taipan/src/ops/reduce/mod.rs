//! Sums, means, maxima and minima over dimensions.

use smallvec::smallvec;

use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::reduce;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{DType, Element, Float, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{FLOAT_ORDER, GREATEST, Grid, LINES, Program, SUM, WORKGROUP, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one, run_one};
use crate::reduction::{Fold, Reduction};
use crate::spec::{Shape, Spec, ensure_dim, joined};
use crate::tensor::Tensor;

/// A reduction of all elements, over some dimensions, and over some that are kept.
macro_rules! reductions {
    ($(
        $fold:ident:
        $(#[$all_doc:meta])* $all:ident,
        $(#[$dims_doc:meta])* $dims:ident,
        $keepdim:ident;
    )*) => {
        /// Reductions. The dimensions that are reduced disappear from the shape; the forms with
        /// `keepdim` keep them, with size 1, so that the result broadcasts with the input.
        impl Tensor {
            $(
                $(#[$all_doc])*
                pub fn $all(&self) -> Result<Tensor> {
                    self.$dims(&self.all_dims())
                }

                $(#[$dims_doc])*
                pub fn $dims(&self, dims: &[usize]) -> Result<Tensor> {
                    reduce_dims(self, dims, Fold::$fold)
                }

                #[doc = concat!("[`", stringify!($dims), "`](Tensor::", stringify!($dims),
                    ") that keeps the dimensions.")]
                pub fn $keepdim(&self, dims: &[usize]) -> Result<Tensor> {
                    self.$dims(dims)?.reshape(&self.shape_keeping(dims))
                }
            )*
        }
    };
}

reductions! {
    Sum:
    /// The sum of all elements, as a tensor of shape `[]`.
    sum,
    /// Sums over the given dimensions.
    sum_dims, sum_keepdim;
    Mean:
    /// The mean of all elements, as a tensor of shape `[]`; NaN if there are none.
    mean,
    /// Means over the given dimensions.
    mean_dims, mean_keepdim;
    Max:
    /// The largest element, as a tensor of shape `[]`.
    max,
    /// Maxima over the given dimensions, whose sizes must not be 0; NaN where there is one.
    /// Elements that share the maximum share its gradient equally.
    max_dims, max_keepdim;
    Min:
    /// The smallest element, as a tensor of shape `[]`.
    min,
    /// Minima over the given dimensions, as [`max_dims`](Tensor::max_dims).
    min_dims, min_keepdim;
}

impl Tensor {
    /// The index of the first largest element along `dim`, as `u32`; a NaN counts as largest.
    pub fn argmax(&self, dim: usize) -> Result<Tensor> {
        const OP: &str = "argmax";
        ensure_dim(OP, dim, self.shape())?;
        run_one(&Argmax(Extent { first: dim, end: dim + 1 }), &[self])
    }

    /// [`argmax`](Tensor::argmax) that keeps the dimension.
    pub fn argmax_keepdim(&self, dim: usize) -> Result<Tensor> {
        self.argmax(dim)?.reshape(&self.shape_keeping(&[dim]))
    }

    pub(super) fn all_dims(&self) -> Vec<usize> {
        (0..self.rank()).collect()
    }

    /// The shape with these dimensions, which were checked, set to 1.
    pub(super) fn shape_keeping(&self, dims: &[usize]) -> Vec<usize> {
        let mut shape = self.shape().to_vec();
        dims.iter().for_each(|&dim| shape[dim] = 1);
        shape
    }
}

fn reduce_dims(x: &Tensor, dims: &[usize], fold: Fold) -> Result<Tensor> {
    let mut order: Vec<usize> = dims.to_vec();
    order.sort_unstable();
    for (i, &dim) in order.iter().enumerate() {
        ensure_dim(fold.name(), dim, x.shape())?;
        ensure!(fold.name(), i == 0 || order[i - 1] != dim, "dimension {dim} is named twice");
    }
    // Without dimensions, each element is reduced alone.
    let (first, count) = (order.first().copied().unwrap_or(0), order.len());
    if order.last().is_none_or(|last| last + 1 - first == count) {
        return apply_one(Reduce { fold, extent: Extent { first, end: first + count } }, &[x]);
    }
    // Dimensions that are not adjacent are moved to the end.
    let mut permutation: Vec<usize> = (0..x.rank()).filter(|d| !order.contains(d)).collect();
    let extent = Extent { first: permutation.len(), end: x.rank() };
    permutation.extend(order);
    apply_one(Reduce { fold, extent }, &[&x.permute(&permutation)?])
}

/// Sum `x` over the dimensions in which `shape`, which broadcasts to it, was repeated.
pub(crate) fn sum_to(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let missing = x.rank() - shape.len();
    let dims: Vec<usize> =
        (0..x.rank()).filter(|&d| d < missing || shape[d - missing] != x.shape()[d]).collect();
    x.sum_dims(&dims)?.reshape(shape)
}

/// A range of adjacent dimensions.
#[derive(Clone, Copy)]
struct Extent {
    first: usize,
    end: usize,
}

impl Extent {
    /// The reduction of these dimensions.
    fn reduction(self, fold: Fold, shape: &[usize]) -> Reduction {
        let [outer, len, inner] =
            [&shape[..self.first], &shape[self.first..self.end], &shape[self.end..]]
                .map(|dims| dims.iter().product());
        Reduction { fold, outer, len, inner }
    }

    fn ensure_nonempty(self, op: &'static str, shape: &[usize]) -> Result<()> {
        match (self.first..self.end).find(|&dim| shape[dim] == 0) {
            Some(dim) => {
                Err(Error::Shape { op, why: format!("dimension {dim} of {shape:?} is empty") })
            }
            None => Ok(()),
        }
    }

    /// The shape without the dimensions of the extent.
    fn removed_from(self, shape: &[usize]) -> Shape {
        joined(&[&shape[..self.first], &shape[self.end..]])
    }

    /// The shape with the dimensions of the extent set to 1.
    fn flattened_in(self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        shape[self.first..self.end].fill(1);
        shape
    }
}

struct Reduce {
    fold: Fold,
    extent: Extent,
}

impl Op for Reduce {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        self.fold.is_extremum() && matches!(slot, Slot::Input(0) | Slot::Output(0))
    }

    /// Each element gets the gradient of its result: unchanged for a sum, divided by the count for
    /// a mean, and for a maximum or minimum divided by the number of elements that equal it.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        if self.fold.is_extremum() {
            return Ok(vec![Some(self.max_grad(saved, &dys[0])?)]);
        }
        let shape = saved.specs[0].shape();
        let mut dy = dys[0].reshape(&self.extent.flattened_in(shape))?;
        if self.fold == Fold::Mean {
            dy = dy.scale(1.0 / self.extent.reduction(self.fold, shape).len as f64)?;
        }
        Ok(vec![Some(dy.broadcast_to(shape)?)])
    }
}

impl Kernel for Reduce {
    fn name(&self) -> &'static str {
        self.fold.name()
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (shape, dtype) = (inputs[0].shape(), inputs[0].dtype());
        dtype.ensure_float(self.name(), "the input")?;
        if self.fold.is_extremum() {
            self.extent.ensure_nonempty(self.name(), shape)?;
        }
        Ok(smallvec![Spec::new(self.name(), &self.extent.removed_from(shape), dtype)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let reduction = self.extent.reduction(self.fold, inputs[0].spec.shape());
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            reduce::reduce(reduction, inputs[0].as_slice::<T>(), outputs[0].as_mut_slice::<T>())
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { op, gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let (x, y) = (&inputs[0], &outputs[0]);
        let reduction = self.extent.reduction(self.fold, x.spec.shape());
        if reduction.len > 0 {
            return gpu.reduce(op, reduction, x.elements(), y.elements());
        }
        // The sum of no elements is 0, their mean is NaN.
        let zero_or_nan = if self.fold == Fold::Mean { f64::NAN } else { 0.0 };
        let word = match y.spec.dtype() {
            DType::F16 => half::f16::of_f64(zero_or_nan).to_bits() as u32 * 0x1_0001,
            _ => (zero_or_nan as f32).to_bits(),
        };
        gpu.fill(op, y.data, word)
    }
}

impl Fold {
    fn name(self) -> &'static str {
        match self {
            Fold::Sum => "sum",
            Fold::Mean => "mean",
            Fold::Max => "max",
            Fold::Min => "min",
        }
    }

    /// Whether a result is one of the elements.
    fn is_extremum(self) -> bool {
        matches!(self, Fold::Max | Fold::Min)
    }
}

impl Reduce {
    /// `dx = dy / (how many equal the maximum, or minimum)` where `x = y`, else 0.
    fn max_grad(&self, saved: &Saved, dy: &Tensor) -> Result<Tensor> {
        let (x, y) = (saved.input(0), saved.output(0));
        let Reduction { outer, len, inner, .. } = self.extent.reduction(self.fold, x.shape());
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            with_dtype!(inputs[1].spec.dtype(), T: Float => {
                let [dy, x, y] = [0, 1, 2].map(|i| inputs[i].as_slice::<T>());
                for_chunks(outputs[0].as_mut_slice::<T>(), len * inner, |start, dx| {
                    let at = start / len; // of [outer, inner]
                    let (dy, y) = (&dy[at..at + inner], &y[at..at + inner]);
                    let x = &x[start..start + dx.len()];
                    // NaNs equal a maximum of NaN.
                    #[allow(clippy::eq_op)]
                    let equals = |x: T, y: T| x == y || x != x && y != y;
                    let mut counts = vec![0u32; inner];
                    for x in x.chunks(inner) {
                        for ((count, x), y) in counts.iter_mut().zip(x).zip(y) {
                            *count += equals(*x, *y) as u32;
                        }
                    }
                    let share = |(dy, count): (&T, u32)| T::of_f64(dy.to_f64() / count as f64);
                    let shares: Vec<T> = dy.iter().zip(counts).map(share).collect();
                    for (dx, x) in dx.chunks_mut(inner).zip(x.chunks(inner)) {
                        for (i, dx) in dx.iter_mut().enumerate() {
                            *dx = if equals(x[i], y[i]) { shares[i] } else { T::of_f64(0.0) };
                        }
                    }
                });
            });
            Ok(())
        };
        let gpu = |io: GpuIo| {
            let params = LineParams::new(outer, len, inner);
            let grid = Grid::lines(outer * inner, outer * len * inner);
            io.launch(max_grad_program(io.inputs[1].spec.dtype(), width(len)), params, grid)
        };
        compute_one((self.name(), "backward"), &[dy, x, y], x.spec.clone(), cpu, gpu)
    }
}

struct Argmax(Extent);

impl Kernel for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let shape = inputs[0].shape();
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        self.0.ensure_nonempty(self.name(), shape)?;
        let len = self.0.reduction(Fold::Max, shape).len;
        ensure!(self.name(), u32::try_from(len).is_ok(), "{len} elements exceed a u32 index");
        Ok(smallvec![Spec::new(self.name(), &self.0.removed_from(shape), DType::U32)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let Reduction { len, inner, .. } = self.0.reduction(Fold::Max, inputs[0].spec.shape());
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<u32>(), GRAIN.div_ceil(len), |start, chunk| {
                for (i, out) in chunk.iter_mut().enumerate() {
                    let (outer, column) = ((start + i) / inner, (start + i) % inner);
                    let best = if inner == 1 {
                        let widen = |j: usize, wide: &mut [<T as Float>::Acc]| {
                            T::widen(&x[outer * len + j..][..wide.len()], wide);
                        };
                        reduce::first_largest(len, widen).1
                    } else {
                        let at = |j: usize| x[(outer * len + j) * inner + column].to_f64();
                        (1..len).fold(0, |best, j| {
                            let (old, new) = (at(best), at(j));
                            if new > old || new.is_nan() && !old.is_nan() { j } else { best }
                        })
                    };
                    *out = best as u32;
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let x = io.inputs[0].spec;
        let Reduction { outer, len, inner, .. } = self.0.reduction(Fold::Max, x.shape());
        let grid = Grid::lines(outer * inner, outer * len * inner);
        let params = LineParams::new(outer, len, inner);
        io.launch(argmax_program(x.dtype(), width(len)), params, grid)
    }
}

params! { struct LineParams { lines: u32, len: u32, inner: u32 } }

impl LineParams {
    fn new(outer: usize, len: usize, inner: usize) -> LineParams {
        LineParams { lines: (outer * inner) as u32, len: len as u32, inner: inner as u32 }
    }
}

fn max_grad_program(elem: DType, width: u32) -> Program {
    let source = [FLOAT_ORDER, SUM, WORKGROUP, wgsl!("max_grad.wgsl"), LINES];
    Program::new::<LineParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

fn argmax_program(elem: DType, width: u32) -> Program {
    let source = [FLOAT_ORDER, GREATEST, WORKGROUP, wgsl!("argmax.wgsl"), LINES];
    Program::new::<LineParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    crate::gpu::WIDTHS
        .into_iter()
        .flat_map(|width| [max_grad_program(elem, width), argmax_program(elem, width)])
        .collect()
}

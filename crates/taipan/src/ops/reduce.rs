//! Sums, means and maxima over dimensions.

use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::fold;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{DType, Element, Float, Real, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{Binding, GROUP, Gpu, GpuBuffer, LINES, Launch, Program, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, run_one};
use crate::spec::{Spec, ensure_dim};
use crate::tensor::Tensor;

/// Reductions. The dimensions that are reduced disappear from the shape.
impl Tensor {
    /// The sum of all elements, as a tensor of shape `[]`.
    pub fn sum(&self) -> Result<Tensor> {
        self.sum_dims(&self.all_dims())
    }

    /// Sums over the given dimensions.
    pub fn sum_dims(&self, dims: &[usize]) -> Result<Tensor> {
        reduce(self, dims, Fold::Sum)
    }

    /// The mean of all elements, as a tensor of shape `[]`; NaN if there are none.
    pub fn mean(&self) -> Result<Tensor> {
        self.mean_dims(&self.all_dims())
    }

    /// Means over the given dimensions.
    pub fn mean_dims(&self, dims: &[usize]) -> Result<Tensor> {
        reduce(self, dims, Fold::Mean)
    }

    /// The largest element, as a tensor of shape `[]`.
    pub fn max(&self) -> Result<Tensor> {
        self.max_dims(&self.all_dims())
    }

    /// Maxima over the given dimensions, whose sizes must not be 0; NaN where there is one.
    /// Elements that share the maximum share its gradient equally.
    pub fn max_dims(&self, dims: &[usize]) -> Result<Tensor> {
        reduce(self, dims, Fold::Max)
    }

    /// The index of the first largest element along `dim`, as `u32`; a NaN counts as largest.
    pub fn argmax(&self, dim: usize) -> Result<Tensor> {
        const OP: &str = "argmax";
        ensure_dim(OP, dim, self.shape())?;
        run_one(&Argmax(Extent { first: dim, end: dim + 1 }), &[self])
    }

    fn all_dims(&self) -> Vec<usize> {
        (0..self.rank()).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fold {
    Sum,
    Mean,
    Max,
}

fn reduce(x: &Tensor, dims: &[usize], fold: Fold) -> Result<Tensor> {
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
    /// The shape as `[outer, len, inner]`, `len` being the dimensions of the extent.
    fn split(self, shape: &[usize]) -> [usize; 3] {
        [&shape[..self.first], &shape[self.first..self.end], &shape[self.end..]]
            .map(|dims| dims.iter().product())
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
    fn removed_from(self, shape: &[usize]) -> Vec<usize> {
        [&shape[..self.first], &shape[self.end..]].concat()
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
        self.fold == Fold::Max && matches!(slot, Slot::Input(0) | Slot::Output(0))
    }

    /// Each element gets the gradient of its result: unchanged for a sum, divided by the count for
    /// a mean, and for a maximum divided by the number of elements that equal it.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        if self.fold == Fold::Max {
            let inputs = [&dys[0], saved.input(0), saved.output(0)];
            return Ok(vec![Some(run_one(&MaxGrad(self.extent), &inputs)?)]);
        }
        let shape = saved.specs[0].shape();
        let mut dy = dys[0].reshape(&self.extent.flattened_in(shape))?;
        if self.fold == Fold::Mean {
            dy = dy.scale(1.0 / self.extent.split(shape)[1] as f64)?;
        }
        Ok(vec![Some(dy.broadcast_to(shape)?)])
    }
}

impl Kernel for Reduce {
    fn name(&self) -> &'static str {
        self.fold.name()
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (shape, dtype) = (inputs[0].shape(), inputs[0].dtype());
        dtype.ensure_float(self.name(), "the input")?;
        if self.fold == Fold::Max {
            self.extent.ensure_nonempty(self.name(), shape)?;
        }
        Ok(vec![Spec::new(self.name(), &self.extent.removed_from(shape), dtype)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let sizes = self.extent.split(inputs[0].spec.shape());
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let (x, out) = (inputs[0].as_slice::<T>(), outputs[0].as_mut_slice::<T>());
            match sizes {
                [_, len, 1] => reduce_rows(self.fold, x, len, out),
                [_, len, inner] => reduce_columns(self.fold, x, len, inner, out),
            }
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let (x, y) = (&inputs[0], &outputs[0]);
        let sizes = self.extent.split(x.spec.shape());
        if sizes[1] == 0 {
            // The sum of no elements is 0, their mean is NaN.
            let zero_or_nan = if self.fold == Fold::Mean { f64::NAN } else { 0.0 };
            let word = match y.spec.dtype() {
                DType::F16 => half::f16::of_f64(zero_or_nan).to_bits() as u32 * 0x1_0001,
                _ => (zero_or_nan as f32).to_bits(),
            };
            return gpu.fill(self.name(), y.data, word);
        }
        let folding =
            Folding { op: self.name(), fold: self.fold, from: x.spec.dtype(), to: y.spec.dtype() };
        folding.launch(gpu, x.data.all(), sizes, y.data.all())
    }
}

impl Fold {
    fn name(self) -> &'static str {
        match self {
            Fold::Sum => "sum",
            Fold::Mean => "mean",
            Fold::Max => "max",
        }
    }

    fn start<A: Real>(self) -> A {
        match self {
            Fold::Max => A::of(f64::NEG_INFINITY),
            Fold::Sum | Fold::Mean => A::ZERO,
        }
    }

    fn slice<A: Real>(self, x: &[A]) -> A {
        match self {
            Fold::Max => fold::max(x).unwrap_or(self.start()),
            Fold::Sum | Fold::Mean => fold::sum(x),
        }
    }

    /// `acc = fold(acc, x)`, element by element.
    fn merge<A: Real>(self, acc: &mut [A], x: &[A]) {
        match self {
            Fold::Max => acc.iter_mut().zip(x).for_each(|(acc, x)| *acc = fold::larger(*acc, *x)),
            Fold::Sum | Fold::Mean => fold::add(acc, x),
        }
    }

    fn finish<A: Real>(self, acc: A, len: usize) -> A {
        match self {
            Fold::Mean => acc / A::of(len as f64),
            Fold::Sum | Fold::Max => acc,
        }
    }
}

/// `[outer, len]` to `[outer]`: first blocks of each row, in parallel, then the results of the
/// blocks.
fn reduce_rows<T: Float>(fold: Fold, x: &[T], len: usize, out: &mut [T]) {
    const BLOCK: usize = 1024;
    let blocks = len.div_ceil(BLOCK);
    let mut partial = vec![fold.start::<T::Acc>(); out.len() * blocks];
    for_chunks(&mut partial, GRAIN.div_ceil(len.clamp(1, BLOCK)), |start, chunk| {
        let mut wide = [T::Acc::ZERO; BLOCK];
        for (i, partial) in chunk.iter_mut().enumerate() {
            let (row, block) = ((start + i) / blocks, (start + i) % blocks);
            let x = &x[row * len..][..len][block * BLOCK..];
            let wide = &mut wide[..x.len().min(BLOCK)];
            T::widen(&x[..wide.len()], wide);
            *partial = fold.slice(wide);
        }
    });
    for_chunks(out, GRAIN.div_ceil(blocks.max(1)), |start, chunk| {
        for (i, out) in chunk.iter_mut().enumerate() {
            let acc = fold.slice(&partial[(start + i) * blocks..][..blocks]);
            T::narrow(&[fold.finish(acc, len)], std::slice::from_mut(out));
        }
    });
}

/// `[outer, len, inner]` to `[outer, inner]`: strips of columns, in parallel, summed in blocks of
/// rows so that the error does not grow with their number.
fn reduce_columns<T: Float>(fold: Fold, x: &[T], len: usize, inner: usize, out: &mut [T]) {
    const STRIP: usize = 256;
    const ROWS: usize = 256;
    for_chunks(out, (GRAIN / len.max(1)).max(1).next_multiple_of(STRIP), |start, chunk| {
        let mut wide = [T::Acc::ZERO; STRIP];
        let mut done = 0;
        while done < chunk.len() {
            let (outer, column) = ((start + done) / inner, (start + done) % inner);
            let n = STRIP.min(inner - column).min(chunk.len() - done);
            let mut total = [fold.start::<T::Acc>(); STRIP];
            for first in (0..len).step_by(ROWS) {
                let mut block = [fold.start::<T::Acc>(); STRIP];
                for row in first..len.min(first + ROWS) {
                    T::widen(&x[(outer * len + row) * inner + column..][..n], &mut wide[..n]);
                    fold.merge(&mut block[..n], &wide[..n]);
                }
                fold.merge(&mut total[..n], &block[..n]);
            }
            for x in &mut total[..n] {
                *x = fold.finish(*x, len);
            }
            T::narrow(&total[..n], &mut chunk[done..done + n]);
            done += n;
        }
    });
}

/// `dx = dy / (how many equal the maximum)` where `x = y`, else 0.
struct MaxGrad(Extent);

impl Kernel for MaxGrad {
    fn name(&self) -> &'static str {
        "max"
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[1].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [_, len, inner] = self.0.split(inputs[1].spec.shape());
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
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let [outer, len, inner] = self.0.split(inputs[1].spec.shape());
        gpu.launch(Launch {
            name: self.name(),
            program: max_grad_program(inputs[1].spec.dtype(), width(len)),
            params: LineParams::new(outer, len, inner),
            inputs: &[inputs[0].data.all(), inputs[1].data.all(), inputs[2].data.all()],
            outputs: &[outputs[0].data.all()],
            groups: outer * inner,
            work: (outer * len * inner) as u64,
        })
    }
}

struct Argmax(Extent);

impl Kernel for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let shape = inputs[0].shape();
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        self.0.ensure_nonempty(self.name(), shape)?;
        let len = self.0.split(shape)[1];
        ensure!(self.name(), u32::try_from(len).is_ok(), "{len} elements exceed a u32 index");
        Ok(vec![Spec::new(self.name(), &self.0.removed_from(shape), DType::U32)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [_, len, inner] = self.0.split(inputs[0].spec.shape());
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<u32>(), GRAIN.div_ceil(len), |start, chunk| {
                for (i, out) in chunk.iter_mut().enumerate() {
                    let (outer, column) = ((start + i) / inner, (start + i) % inner);
                    let best = if inner == 1 {
                        let widen = |j: usize, wide: &mut [<T as Float>::Acc]| {
                            T::widen(&x[outer * len + j..][..wide.len()], wide);
                        };
                        fold::first_largest(len, widen).1
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

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let [outer, len, inner] = self.0.split(inputs[0].spec.shape());
        gpu.launch(Launch {
            name: self.name(),
            program: argmax_program(inputs[0].spec.dtype(), width(len)),
            params: LineParams::new(outer, len, inner),
            inputs: &[inputs[0].data.all()],
            outputs: &[outputs[0].data.all()],
            groups: outer * inner,
            work: (outer * len * inner) as u64,
        })
    }
}

/// A reduction on a GPU, in as many passes as it takes: each folds blocks, in an order that depends
/// on the sizes only, and writes f32 for the next.
pub(super) struct Folding {
    op: &'static str,
    fold: Fold,
    from: DType,
    to: DType,
}

params! {
    struct FoldParams { lines: u32, outer: u32, len: u32, inner: u32, blocks: u32, divisor: f32 }
}

/// Contiguous elements that a workgroup folds into one.
const ROW_BLOCK: usize = 4096;
/// Elements that an invocation folds into one.
const COLUMN_BLOCK: usize = 64;

impl Folding {
    pub(super) fn sum(op: &'static str, from: DType, to: DType) -> Folding {
        Folding { op, fold: Fold::Sum, from, to }
    }

    /// `[outer, len, inner]` to `[outer, inner]`; `len` is not 0.
    pub(super) fn launch(
        &self,
        gpu: &Gpu,
        x: Binding,
        [outer, len, inner]: [usize; 3],
        y: Binding,
    ) -> Result<()> {
        let divisor = if self.fold == Fold::Mean { len as f32 } else { 1.0 };
        let (mut from, mut left) = (self.from, len);
        let mut partial: Option<GpuBuffer> = None;
        loop {
            // A workgroup folds contiguous elements, an invocation strided or few ones.
            let rows = (inner == 1 && left > COLUMN_BLOCK).then(|| width(left));
            let block = if rows.is_some() { ROW_BLOCK } else { COLUMN_BLOCK };
            let blocks = left.div_ceil(block);
            let last = blocks == 1;
            let to = if last { self.to } else { DType::F32 };
            let results = outer * blocks * inner;
            let next = match last {
                true => None,
                false => Some(gpu.scratch(self.op, results * DType::F32.size())?),
            };
            let (x, y) = (
                partial.as_ref().map_or(x, GpuBuffer::all),
                next.as_ref().map_or(y, GpuBuffer::all),
            );
            // A single row may be longer than a binding.
            let single = outer == 1 && inner == 1;
            let windows = single.then(|| gpu.windows(blocks, block * from.size()));
            let whole = (!single).then_some(0..blocks);
            for window in whole.into_iter().chain(windows.into_iter().flatten()) {
                let elements = window.start * block..(window.end * block).min(left);
                let (len, lines) = (elements.len(), outer * window.len());
                let (x, y) = match window.len() == blocks {
                    true => (x, y),
                    false => (x.window(elements, from.size()), y.window(window.clone(), to.size())),
                };
                gpu.launch(Launch {
                    name: self.op,
                    program: fold_program(self.fold, rows, from, to),
                    params: FoldParams {
                        lines: lines as u32,
                        outer: outer as u32,
                        len: len as u32,
                        inner: inner as u32,
                        blocks: window.len() as u32,
                        divisor: if last { divisor } else { 1.0 },
                    },
                    inputs: &[x],
                    outputs: &[y],
                    groups: if rows.is_some() { lines } else { (lines * inner).div_ceil(GROUP) },
                    work: (outer * len * inner) as u64,
                })?;
            }
            if last {
                return Ok(());
            }
            (partial, from, left) = (next, DType::F32, blocks);
        }
    }
}

/// For contiguous elements, with workgroups of this width; or for strided ones.
fn fold_program(fold: Fold, rows: Option<u32>, from: DType, to: DType) -> Program {
    let (kernel, entry, block) = match rows {
        Some(_) => (include_str!("reduce_rows.wgsl"), LINES, ROW_BLOCK),
        None => (include_str!("reduce_columns.wgsl"), "", COLUMN_BLOCK),
    };
    let mut consts = vec![("FOLD", (fold == Fold::Max) as u32), ("BLOCK", block as u32)];
    consts.extend(rows.map(|width| ("WIDTH", width)));
    Program::new::<FoldParams>(
        &[include_str!("../gpu/float_order.wgsl"), include_str!("fold.wgsl"), kernel, entry],
        &[("In", from), ("Out", to)],
        &consts,
    )
}

params! { struct LineParams { lines: u32, len: u32, inner: u32 } }

impl LineParams {
    fn new(outer: usize, len: usize, inner: usize) -> LineParams {
        LineParams { lines: (outer * inner) as u32, len: len as u32, inner: inner as u32 }
    }
}

fn max_grad_program(elem: DType, width: u32) -> Program {
    let source = [include_str!("../gpu/float_order.wgsl"), include_str!("max_grad.wgsl"), LINES];
    Program::new::<LineParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

fn argmax_program(elem: DType, width: u32) -> Program {
    let source = [
        include_str!("../gpu/float_order.wgsl"),
        include_str!("../gpu/greatest.wgsl"),
        include_str!("argmax.wgsl"),
        LINES,
    ];
    Program::new::<LineParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let widths = crate::gpu::WIDTHS;
    let mut all = Vec::new();
    all.extend(widths.map(|width| max_grad_program(elem, width)));
    all.extend(widths.map(|width| argmax_program(elem, width)));
    for fold in [Fold::Sum, Fold::Mean, Fold::Max] {
        for (from, to) in [(elem, elem), (elem, DType::F32), (DType::F32, elem)] {
            let rows = [None, Some(widths[0]), Some(widths[1])];
            all.extend(rows.map(|rows| fold_program(fold, rows, from, to)));
        }
    }
    all
}

//! The loss of a classifier, from logits.

use std::ops::Range;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::CpuBuffer;
use crate::cpu::fold::{self, LANES};
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{
    Binding, ELEMENTS, GROUP, Gpu, GpuBuffer, INDEX_ERRORS, LINES, Launch, Program, params, width,
};
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run_one};
use crate::ops::embedding::ensure_below;
use crate::spec::Spec;
use crate::tensor::Tensor;

/// The mean of `−ln softmax(logits)[target]` over all targets that are not ignored.
///
/// | tensor | shape |
/// |---|---|
/// | `logits` | `[…, v]`, of any float type |
/// | `targets` | `[…]`, of type `u32`: classes below `v`, or `ignore` |
/// | result | `[]`, in f32, or f64 for f64 |
///
/// If every target is ignored, the loss is 0, and so are the gradients: a batch of padding changes
/// nothing. A class that is not below `v` is an error. On a GPU it is a device-side error: the loss
/// is NaN, and the next read of any tensor returns the error.
///
/// The logits are saved for backward. For a large vocabulary, see
/// [`linear_cross_entropy`](crate::linear_cross_entropy), which never materialises them.
///
/// ```
/// use taipan::{Device, Tensor, cross_entropy};
///
/// let logits = Tensor::new(&[0f32, 0.0, 0.0, 9f32.ln()], &[2, 2], &Device::Cpu)?.tracked();
/// let targets = Tensor::new(&[0u32, 1], &[2], &Device::Cpu)?;
/// let loss = cross_entropy(&logits, &targets, None)?;
/// assert!((loss.item()? - (2f64.ln() + (10f64 / 9.0).ln()) / 2.0).abs() < 1e-6);
/// assert_eq!(loss.backward()?.of(&logits)?.shape(), [2, 2]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, ignore: Option<u32>) -> Result<Tensor> {
    apply_one(CrossEntropy { ignore, rows: targets.len() }, &[logits, targets])
}

const OP: &str = "cross_entropy";

/// Inputs `logits` and `targets`. The result is the loss; a [`Row`] per row, and the number of rows
/// that are not ignored, are saved for backward.
struct CrossEntropy {
    ignore: Option<u32>,
    rows: usize,
}

impl Op for CrossEntropy {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        matches!(slot, Slot::Input(_))
    }

    /// `dlogits = (softmax(logits) − onehot(target))·dy/count`, 0 where the target is ignored
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (logits, targets) = (saved.input(0), saved.input(1));
        let inputs = [logits, targets, saved.output(1), saved.output(2), &dys[0]];
        Ok(vec![Some(run_one(&CrossEntropyGrad { ignore: self.ignore }, &inputs)?), None])
    }
}

impl Kernel for CrossEntropy {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (logits, targets) = (inputs[0], inputs[1]);
        logits.dtype().ensure_float(OP, "the tensor of logits")?;
        let [lead @ .., v] = logits.shape() else {
            let why = "the logits are [], expected […, v]".into();
            return Err(Error::Shape { op: OP, why });
        };
        ensure_targets(OP, targets, lead)?;
        let shape = logits.shape();
        ensure!(OP, *v > 0 || self.rows == 0, "the logits are {shape:?}, expected a class or more");
        Ok(vec![loss_spec(OP, self.rows, logits.dtype())?])
    }

    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        saved_specs(OP, self.rows, &outputs[0])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        const BLOCK: usize = 1024;
        let (n, targets) = (columns(inputs[0].spec), inputs[1].as_slice::<u32>());
        ensure_below(OP, "target", targets, n, self.ignore)?;
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let logits = inputs[0].as_slice::<T>();
            let mut rows = vec![Row::<<T as Float>::Acc>::NEW; self.rows];
            for_chunks(&mut rows, GRAIN.div_ceil(n.max(1)), |start, rows| {
                let mut wide = [<T as Float>::Acc::ZERO; BLOCK];
                for (i, row) in rows.iter_mut().enumerate() {
                    let target = targets[start + i];
                    if Some(target) == self.ignore {
                        continue;
                    }
                    let logits = &logits[(start + i) * n..][..n];
                    for (block, logits) in logits.chunks(BLOCK).enumerate() {
                        let logits = widened(logits, &mut wide[..logits.len()]);
                        row.take(block * BLOCK, logits, target);
                    }
                }
            });
            store(&rows, targets, self.ignore, outputs);
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let classes = columns(inputs[0].spec);
        let targets = &inputs[1];
        let loss = GpuLoss { op: OP, gpu, ignore: self.ignore, classes, targets };
        loss.forward(outputs, |rows| loss.take(inputs[0].elements(), 0..classes, rows))
    }
}

/// `dlogits`; inputs `logits`, `targets`, the saved rows and count, and `dy`.
struct CrossEntropyGrad {
    ignore: Option<u32>,
}

impl Kernel for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        OP
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let (n, targets) = (columns(inputs[0].spec), inputs[1].as_slice::<u32>());
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let logits = inputs[0].as_slice::<T>();
            let rows = Row::load(inputs[2].as_slice::<<T as Float>::Acc>());
            let scale = scale(&inputs[3], &inputs[4]);
            let len = GRAIN.div_ceil(n.max(1)) * n;
            for_chunks(outputs[0].as_mut_slice::<T>(), len, |start, chunk| {
                let mut wide = vec![<T as Float>::Acc::ZERO; n];
                for (i, out) in chunk.chunks_mut(n).enumerate() {
                    let row = start / n + i;
                    let target = Some(targets[row]).filter(|_| Some(targets[row]) != self.ignore);
                    T::widen(&logits[row * n..][..n], &mut wide);
                    rows[row].grad(0, &mut wide, target, scale);
                    T::narrow(&wide, out);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let classes = columns(inputs[0].spec);
        let loss = GpuLoss { op: OP, gpu, ignore: self.ignore, classes, targets: &inputs[1] };
        let saved = [&inputs[2], &inputs[3], &inputs[4]].map(|view| view.data.all());
        loss.grad(inputs[0].elements(), 0..classes, saved, outputs[0].elements())
    }
}

/// The loss over `rows` rows of this type. It has the wider type: f16 could not hold a scaled loss.
pub(super) fn loss_spec(op: &'static str, rows: usize, dtype: DType) -> Result<Spec> {
    let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
    Spec::new(op, &[rows, 3], wide)?; // the saved rows
    Spec::new(op, &[], wide)
}

/// Check that targets have this shape.
pub(super) fn ensure_targets(op: &'static str, targets: &Spec, shape: &[usize]) -> Result<()> {
    targets.dtype().ensure(DType::U32, op, "the tensor of targets")?;
    ensure!(op, targets.shape() == shape, "targets are {:?}, expected {shape:?}", targets.shape());
    Ok(())
}

/// What is saved for backward: the [`Row`]s, and the number of those that are not ignored.
pub(super) fn saved_specs(op: &'static str, rows: usize, loss: &Spec) -> Vec<Spec> {
    let rows = Spec::new(op, &[rows, 3], loss.dtype());
    vec![rows.expect("checked by `loss_spec`"), loss.clone()]
}

fn columns(logits: &Spec) -> usize {
    logits.shape()[logits.shape().len() - 1]
}

/// A row of logits, read block by block. The loss is `ln sum + (max − logit)`, in which nothing
/// overflows and large logits lose no digits.
#[derive(Clone, Copy)]
pub(super) struct Row<A> {
    max: A,
    /// `Σ exp(x − max)`
    sum: A,
    /// The logit of the target.
    logit: A,
}

impl<A: Real> Row<A> {
    pub(super) const NEW: Row<A> = Row { max: A::NEG_INFINITY, sum: A::ZERO, logit: A::ZERO };

    pub(super) fn load(stored: &[A]) -> Vec<Row<A>> {
        let (rows, _) = stored.as_chunks::<3>();
        rows.iter().map(|&[max, sum, logit]| Row { max, sum, logit }).collect()
    }

    /// Add the logits of the classes from `first` on.
    pub(super) fn take(&mut self, first: usize, logits: &[A], target: u32) {
        let Some(max) = fold::max(logits) else { return };
        let max = fold::larger(self.max, max);
        // If all logits are −∞, the sum is 0 relative to any number.
        let relative_to = if max == A::NEG_INFINITY { A::ZERO } else { max };
        let before = if self.max == max { self.sum } else { self.sum * exp(self.max - max) };
        self.sum = before + sum_of_exp(logits, relative_to);
        self.max = max;
        if let Some(logit) = (target as usize).checked_sub(first).and_then(|i| logits.get(i)) {
            self.logit = *logit;
        }
    }

    /// Replace the logits of the classes from `first` on by their gradient; 0 without a target.
    pub(super) fn grad(&self, first: usize, logits: &mut [A], target: Option<u32>, scale: A) {
        let Some(target) = target else { return logits.fill(A::ZERO) };
        scaled_exp(logits, self.max, scale / self.sum);
        if let Some(x) = (target as usize).checked_sub(first).and_then(|i| logits.get_mut(i)) {
            *x = *x - scale;
        }
    }
}

/// Store the loss and, if there are outputs for them, the rows and the count.
pub(super) fn store<A: Real>(
    rows: &[Row<A>],
    targets: &[u32],
    ignore: Option<u32>,
    outputs: &mut [View<&mut CpuBuffer>],
) {
    let counts = |target: &&u32| Some(**target) != ignore;
    let mut losses = vec![A::ZERO; rows.len()];
    losses_of(rows, &mut losses);
    for (loss, target) in losses.iter_mut().zip(targets) {
        *loss = if counts(&target) { *loss } else { A::ZERO };
    }
    let count = targets.iter().filter(counts).count();
    let mean = fold::sum(&losses) / A::of(count.max(1) as f64);
    outputs[0].as_mut_slice::<A>()[0] = mean;
    if let [_, saved, counted] = outputs {
        for (saved, row) in saved.as_mut_slice::<A>().chunks_mut(3).zip(rows) {
            saved.copy_from_slice(&[row.max, row.sum, row.logit]);
        }
        counted.as_mut_slice::<A>()[0] = A::of(count as f64);
    }
}

/// `dy/count`
pub(super) fn scale<A: Real>(count: &View<&CpuBuffer>, dy: &View<&CpuBuffer>) -> A {
    dy.as_slice::<A>()[0] / count.as_slice::<A>()[0]
}

vectorized! {
    fn exp<I: Isa, A: Real>(x: A) -> A {
        x.exp::<I>()
    }

    /// `Σ exp(x − max)`
    fn sum_of_exp<I: Isa, A: Real>(x: &[A], max: A) -> A {
        let mut lanes = [A::ZERO; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane += (*x - max).exp::<I>();
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += (*x - max).exp::<I>();
        }
        fold::join(lanes)
    }

    /// `x = exp(x − max)·factor`
    fn scaled_exp<I: Isa, A: Real>(x: &mut [A], max: A, factor: A) {
        for x in x {
            *x = (*x - max).exp::<I>() * factor;
        }
    }

    /// `ln sum + (max − logit)` of each row.
    fn losses_of<I: Isa, A: Real>(rows: &[Row<A>], losses: &mut [A]) {
        for (row, loss) in rows.iter().zip(losses) {
            *loss = row.sum.ln::<I>() + (row.max - row.logit);
        }
    }
}

/// The loss on a GPU, from the logits of some classes at a time.
pub(super) struct GpuLoss<'a> {
    pub(super) op: &'static str,
    pub(super) gpu: &'a Gpu,
    pub(super) ignore: Option<u32>,
    pub(super) classes: usize,
    pub(super) targets: &'a View<'a, &'a GpuBuffer>,
}

impl GpuLoss<'_> {
    /// Compute the loss and, if there are outputs for them, the rows and the count. `take_all` adds
    /// the logits of all classes to the rows it is given.
    pub(super) fn forward(
        &self,
        outputs: &[View<&GpuBuffer>],
        take_all: impl FnOnce(Binding) -> Result<()>,
    ) -> Result<()> {
        let scratch = |len: usize| self.gpu.scratch(self.op, len * DType::F32.size());
        let (rows, count);
        let (rows, count) = match outputs {
            [_, rows, count] => (rows.data, count.data),
            _ => {
                (rows, count) = (scratch(self.rows() * 3)?, scratch(1)?);
                (&rows, &count)
            }
        };
        take_all(rows.all())?;
        self.gpu.launch(Launch {
            name: self.op,
            program: mean_program(),
            params: self.params(1, 0..0),
            inputs: &[rows.all(), self.targets.data.all()],
            outputs: &[outputs[0].data.all(), count.all()],
            groups: 1,
            work: self.rows() as u64,
        })
    }

    /// Add the logits of these classes, `[rows, classes]`, to the rows. Class 0 must come first.
    pub(super) fn take(
        &self,
        (logits, dtype): (Binding, DType),
        classes: Range<usize>,
        rows: Binding,
    ) -> Result<()> {
        let n = classes.len();
        self.gpu.launch(Launch {
            name: self.op,
            program: rows_program(dtype, width(n)),
            params: self.params(self.rows(), classes),
            inputs: &[logits, self.targets.data.all()],
            outputs: &[rows, self.gpu.index_errors()],
            groups: self.rows(),
            work: (self.rows() * n) as u64,
        })
    }

    /// The gradients of the logits of these classes, from the rows, the count and `dy`.
    pub(super) fn grad(
        &self,
        (logits, from): (Binding, DType),
        classes: Range<usize>,
        [rows, count, dy]: [Binding; 3],
        (dlogits, to): (Binding, DType),
    ) -> Result<()> {
        let len = self.rows() * classes.len();
        self.gpu.launch(Launch {
            name: self.op,
            program: grad_program(from, to),
            params: self.params(len, classes),
            inputs: &[logits, self.targets.data.all(), rows, count, dy],
            outputs: &[dlogits],
            groups: len.div_ceil(GROUP),
            work: len as u64,
        })
    }

    fn rows(&self) -> usize {
        self.targets.spec.len()
    }

    fn params(&self, lines: usize, classes: Range<usize>) -> LossParams {
        let [len, rows, classes_, first, n] =
            [lines, self.rows(), self.classes, classes.start, classes.len()].map(|x| x as u32);
        LossParams {
            lines: len,
            len,
            rows,
            classes: classes_,
            first,
            n,
            ignores: self.ignore.is_some() as u32,
            ignore: self.ignore.unwrap_or(0),
            slot: self.gpu.index_error_slot(self.op, "target"),
            nan: f32::NAN,
        }
    }
}

params! {
    struct LossParams {
        lines: u32, len: u32, rows: u32, classes: u32, first: u32, n: u32,
        ignores: u32, ignore: u32, slot: u32, nan: f32,
    }
}

fn rows_program(elem: DType, width: u32) -> Program {
    let source =
        [include_str!("../gpu/math.wgsl"), include_str!("cross_entropy.wgsl"), INDEX_ERRORS, LINES];
    Program::new::<LossParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

fn mean_program() -> Program {
    let source = [include_str!("../gpu/math.wgsl"), include_str!("cross_entropy_mean.wgsl"), LINES];
    Program::new::<LossParams>(&source, &[], &[("WIDTH", GROUP as u32)])
}

fn grad_program(elem: DType, out: DType) -> Program {
    let source =
        [include_str!("../gpu/math.wgsl"), include_str!("cross_entropy_grad.wgsl"), ELEMENTS];
    Program::new::<LossParams>(&source, &[("Elem", elem), ("Out", out)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let rows = crate::gpu::WIDTHS.map(|width| rows_program(elem, width));
    [mean_program(), grad_program(elem, elem)].into_iter().chain(rows).collect()
}

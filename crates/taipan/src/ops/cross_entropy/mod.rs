//! The loss of a classifier, from logits.

mod cpu;
mod gpu;

use smallvec::smallvec;

pub(super) use self::cpu::{Row, scale, store};
pub(super) use self::gpu::GpuLoss;
#[cfg(test)]
pub(super) use self::gpu::programs;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::BLOCK;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one};
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
        let ignore = self.ignore;
        let n = columns(&logits.spec);
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            let targets = inputs[1].as_slice::<u32>();
            with_dtype!(inputs[0].spec.dtype(), T: Float => {
                let logits = inputs[0].as_slice::<T>();
                let rows = Row::load(inputs[2].as_slice::<<T as Float>::Acc>());
                let scale = scale(&inputs[3], &inputs[4]);
                let len = GRAIN.div_ceil(n.max(1)) * n;
                for_chunks(outputs[0].as_mut_slice::<T>(), len, |start, chunk| {
                    let mut wide = vec![<T as Float>::Acc::ZERO; n];
                    for (i, out) in chunk.chunks_mut(n).enumerate() {
                        let row = start / n + i;
                        let target = Some(targets[row]).filter(|target| Some(*target) != ignore);
                        T::widen(&logits[row * n..][..n], &mut wide);
                        rows[row].grad(0, &mut wide, target, scale);
                        T::narrow(&wide, out);
                    }
                });
            });
            Ok(())
        };
        let gpu = |GpuIo { gpu, inputs, outputs, .. }: GpuIo| {
            let loss = GpuLoss { op: OP, gpu, ignore, classes: n, targets: &inputs[1] };
            let saved = [2, 3, 4].map(|i| inputs[i].all());
            loss.grad(inputs[0].elements(), 0..n, saved, outputs[0].elements())
        };
        let inputs = [logits, targets, saved.output(1), saved.output(2), &dys[0]];
        let spec = logits.spec.clone();
        Ok(vec![Some(compute_one((OP, "backward"), &inputs, spec, cpu, gpu)?), None])
    }
}

impl Kernel for CrossEntropy {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (logits, targets) = (inputs[0], inputs[1]);
        logits.dtype().ensure_float(OP, "the tensor of logits")?;
        let [lead @ .., v] = logits.shape() else {
            let why = "the logits are [], expected […, v]".into();
            return Err(Error::Shape { op: OP, why });
        };
        ensure_targets(OP, targets, lead)?;
        let shape = logits.shape();
        ensure!(OP, *v > 0 || self.rows == 0, "the logits are {shape:?}, expected a class or more");
        Ok(smallvec![loss_spec(OP, self.rows, logits.dtype())?])
    }

    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        saved_specs(OP, self.rows, &outputs[0])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
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

    fn gpu(&self, GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
        let classes = columns(inputs[0].spec);
        let targets = &inputs[1];
        let loss = GpuLoss { op: OP, gpu, ignore: self.ignore, classes, targets };
        loss.forward(outputs, |rows| loss.take(inputs[0].elements(), 0..classes, rows))
    }
}

/// The loss over `rows` rows of this type. It has the wider type: f16 could not hold a scaled loss.
pub(super) fn loss_spec(op: &'static str, rows: usize, dtype: DType) -> Result<Spec> {
    Spec::new(op, &[rows, 3], dtype.wider())?; // the saved rows
    Spec::new(op, &[], dtype.wider())
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

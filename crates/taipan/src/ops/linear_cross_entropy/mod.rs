//! The loss of a classifier whose logits are a product that is never materialised: for a large
//! vocabulary it would be the largest tensor of all.
//!
//! The classes are split into blocks. Forward adds the logits of each block to the state of each
//! row. Backward recomputes them and turns them into their gradients; each block gives
//! its columns of `dw`, and a term of `dx`.

mod cpu;
mod gpu;

use std::ops::Range;

use smallvec::smallvec;

use super::cross_entropy::{cross_entropy, ensure_targets, loss_spec, saved_specs};
use super::linear::{Weight, linear};
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::error::{Error, Result, ensure};
use crate::function::Activation;
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute};
use crate::product::{Layout, Product};
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "linear_cross_entropy";

/// [`cross_entropy`](crate::cross_entropy) of the logits `x·w`, which are never materialised:
/// besides its result this takes some blocks of at most 8 MiB (16 in f64) and, for backward, a few
/// tensors of the size of `x`.
///
/// | tensor | shape |
/// |---|---|
/// | `x` | `[…, k]` |
/// | `w` | `[k, v]`, or [`Weight::nk`] `[v, k]`, as the table of [`embedding`](crate::embedding) |
/// | `targets` | `[…]`, of type `u32`: classes below `v`, or `ignore` |
/// | result | `[]`, in f32, or f64 for f64 |
///
/// Logits are not rounded to the type of `x` and `w`. Backward recomputes them, so that there are
/// four products in all. On a GPU a `w` stored as `[k, v]` is limited to the size of a binding;
/// with [`Weight::nk`] it may be as large as a tensor can be. With [`Weight::int8`], which has no
/// gradient, the logits are materialised.
///
/// ```
/// use taipan::{DType, Device, Tensor, Weight, linear_cross_entropy};
///
/// let x = Tensor::randn(&[2, 5, 8], 1, DType::F32, &Device::Cpu)?.tracked();
/// let table = Tensor::randn(&[100, 8], 2, DType::F32, &Device::Cpu)?.tracked();
/// let targets = Tensor::new(&[1u32, 5, 9, 99, 0, 3, 3, 7, 8, 8], &[2, 5], &Device::Cpu)?;
/// let loss = linear_cross_entropy(&x, Weight::nk(&table), &targets, Some(0))?;
/// let grads = loss.backward()?;
/// assert_eq!(grads.of(&table)?.shape(), [100, 8]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn linear_cross_entropy<'a>(
    x: &Tensor,
    w: impl Into<Weight<'a>>,
    targets: &Tensor,
    ignore: Option<u32>,
) -> Result<Tensor> {
    let w = w.into();
    if w.is_int8() {
        let logits = linear(x, w, None, Activation::None)?;
        return cross_entropy(&logits, targets, ignore);
    }
    let (w, layout) = w.float(OP)?;
    apply_one(LinearCrossEntropy { layout, ignore, rows: targets.len() }, &[x, w, targets])
}

/// Elements of a block of logits, and the limits of its columns: enough for a fast product, few
/// enough for a small block of `w`. Blocks begin at multiples of `UNIT`, which keeps the alignment
/// of bindings.
const BLOCK: usize = 1 << 21;
const COLUMNS: [usize; 2] = [256, 4096];
const UNIT: usize = 128;

/// The product of which the logits are the result; `n` is the number of classes. Of `x` and `w`,
/// which were checked.
fn logits_of(layout: Layout, x: &Spec, w: &Spec) -> Product {
    let (x, [first, second]) = (x.shape(), [w.shape()[0], w.shape()[1]]);
    let (k, n) = match layout {
        Layout::RowMajor => (first, second),
        Layout::Transposed => (second, first),
    };
    let m = x[..x.len() - 1].iter().product();
    Product { entries: 1, m, n, k, left: Layout::RowMajor, right: layout }
}

/// Columns of a block.
fn block_len(logits: Product) -> usize {
    (BLOCK / logits.m.max(1)).clamp(COLUMNS[0], COLUMNS[1]) / UNIT * UNIT
}

/// The classes in blocks.
fn blocks(logits: Product) -> impl Iterator<Item = Range<usize>> {
    let len = block_len(logits);
    (0..logits.n).step_by(len).map(move |first| first..(first + len).min(logits.n))
}

/// Inputs `x`, `w` and `targets`; results and saved tensors as those of `cross_entropy`.
struct LinearCrossEntropy {
    layout: Layout,
    ignore: Option<u32>,
    rows: usize,
}

impl Op for LinearCrossEntropy {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        matches!(slot, Slot::Input(_))
    }

    /// `p = (softmax(x·w) − onehot(target))·dy/count`, `dx = p·wᵀ`, `dw = xᵀ·p`
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let mut inputs: Vec<&Tensor> = (0..3).map(|i| saved.input(i)).collect();
        inputs.extend([saved.output(1), saved.output(2), &dys[0]]);
        let needed = (0..2).filter(|&i| saved.needs[i]);
        let specs = needed.map(|i| saved.specs[i].clone()).collect();
        let needs = [saved.needs[0], saved.needs[1]];
        let cpu = |io: CpuIo| cpu::backward(self, needs, io);
        let gpu = |io: GpuIo| gpu::backward(self, needs, io);
        let grads = compute((OP, "backward"), &inputs, specs, cpu, gpu)?;
        let [dx, dw] = by_need(needs, grads.into_iter());
        Ok(vec![dx, dw, None])
    }
}

/// `dx` and `dw`, or their places, among those that are needed.
fn by_need<O>(needs: [bool; 2], mut of: impl Iterator<Item = O>) -> [Option<O>; 2] {
    needs.map(|needed| if needed { of.next() } else { None })
}

impl Kernel for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (x, w) = (inputs[0].shape(), inputs[1].shape());
        inputs[0].dtype().ensure_float(OP, "the input")?;
        inputs[1].dtype().ensure(inputs[0].dtype(), OP, "the weight")?;
        let [lead @ .., k] = x else {
            return Err(Error::Shape { op: OP, why: "the input is [], expected […, k]".into() });
        };
        let (w_k, form) = match self.layout {
            Layout::RowMajor => (0, "[k, v]"),
            Layout::Transposed => (1, "[v, k]"),
        };
        ensure!(
            OP,
            w.len() == 2 && w[w_k] == *k,
            "the weight is {w:?}, expected {form} with k = {k} for {x:?}"
        );
        ensure_targets(OP, inputs[2], lead)?;
        let classes = logits_of(self.layout, inputs[0], inputs[1]).n;
        ensure!(OP, classes > 0 || self.rows == 0, "the weight is {w:?}, expected a class or more");
        Ok(smallvec![loss_spec(OP, self.rows, inputs[0].dtype())?])
    }

    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        saved_specs(OP, self.rows, &outputs[0])
    }

    fn cpu(&self, io: CpuIo) -> Result<()> {
        cpu::forward(self, io)
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        gpu::forward(self, io)
    }
}

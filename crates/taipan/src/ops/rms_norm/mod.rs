//! RMS norm along the last dimension, alone or after the addition of a residual.

mod cpu;
mod gpu;

use smallvec::smallvec;

#[cfg(test)]
pub(super) use self::gpu::programs;
use crate::autograd::{Op, Saved, Slot, apply, apply_one};
use crate::error::{Error, Result, ensure};
use crate::kernel::{CpuIo, Few, GpuIo, Kernel, Results, compute};
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::terms::Terms;
use crate::{DType, Device};

/// `x·weight / √(mean(x²) + eps)`, the mean taken along the last dimension.
///
/// | tensor | shape |
/// |---|---|
/// | `x` | `[…, n]` |
/// | `weight`, if there is one | `[n]`, or more of the last dimensions of `x` |
/// | result | `[…, n]` |
///
/// Both have the same float type. Sums are accumulated in f32 (f64 for f64), and squares neither
/// overflow nor underflow: a row of 1e25 or of 1e-25 in f32 is as accurate as one of 1, as long as
/// `√(mean(x²) + eps)` and its inverse are normal numbers.
///
/// Groups of channels, each with its own mean, are a dimension: `x` is `[…, groups, n]` and `weight`
/// is `[groups, n]`, both by [`reshape`](Tensor::reshape), which is free.
///
/// `x`, `weight` and one number per row are saved for backward.
///
/// ```
/// use taipan::{Device, Tensor, rms_norm};
///
/// let x = Tensor::new(&[3f32, -3.0, 3.0, 3.0], &[1, 4], &Device::Cpu)?;
/// let weight = Tensor::new(&[1f32, 1.0, 2.0, 0.5], &[4], &Device::Cpu)?;
/// let y = rms_norm(&x, &weight, 0.0)?;
/// assert_eq!(y.read_blocking::<f32>()?, [1.0, -1.0, 2.0, 0.5]);
/// let y = rms_norm(&x, None, 0.0)?;
/// assert_eq!(y.read_blocking::<f32>()?, [1.0, -1.0, 1.0, 1.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn rms_norm<'a>(
    x: &'a Tensor,
    weight: impl Into<Option<&'a Tensor>>,
    eps: f64,
) -> Result<Tensor> {
    let weight = weight.into();
    let op = RmsNorm { name: "rms_norm", eps, weighted: weight.is_some(), with: With::Nothing };
    let inputs: Few<_> = [x].into_iter().chain(weight).collect();
    apply_one(op, &inputs)
}

/// Whether a gate comes before the norm or after it: see [`gated_rms_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateOrder {
    /// `rms_norm(x ⊙ silu(gate))`, as in Mamba-2.
    GateFirst,
    /// `rms_norm(x) ⊙ silu(gate)`
    NormFirst,
}

/// [`rms_norm`] with a gate, `silu(gate)`, in one pass.
///
/// `gate` has the shape and type of `x`; groups of channels as in [`rms_norm`]. `x`, `gate`,
/// `weight` and one number per row are saved for backward, which is one pass, too.
///
/// ```
/// use taipan::{Device, GateOrder, Tensor, gated_rms_norm};
///
/// let x = Tensor::new(&[1f32, -1.0, 2.0, 2.0], &[1, 2, 2], &Device::Cpu)?;
/// let gate = Tensor::full(&[1, 2, 2], 100.0, x.dtype(), &Device::Cpu)?;
/// let y = gated_rms_norm(&x, &gate, None, 0.0, GateOrder::GateFirst)?;
/// assert_eq!(y.read_blocking::<f32>()?, [1.0, -1.0, 1.0, 1.0]);
/// let y = gated_rms_norm(&x, &gate, None, 0.0, GateOrder::NormFirst)?;
/// assert_eq!(y.read_blocking::<f32>()?, [100.0, -100.0, 100.0, 100.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn gated_rms_norm(
    x: &Tensor,
    gate: &Tensor,
    weight: Option<&Tensor>,
    eps: f64,
    order: GateOrder,
) -> Result<Tensor> {
    let weighted = weight.is_some();
    let op = RmsNorm { name: "gated_rms_norm", eps, weighted, with: With::Gate(order) };
    let inputs: Few<_> = [x].into_iter().chain(weight).chain([gate]).collect();
    apply_one(op, &inputs)
}

/// [`rms_norm`] of `s = residual + x`, and `s`, in one pass.
///
/// | tensor | shape | type |
/// |---|---|---|
/// | `x` | `[…, n]` | a float |
/// | `residual` | that of `x` | that of `x`, or f32 if `x` is f16 or bf16 |
/// | `weight` | `[n]` | that of `x` |
/// | first result, the norm | that of `x` | that of `x` |
/// | second result, `s` | that of `x` | that of `residual` |
///
/// A residual in f32 stays in f32 while the rest of a network is in f16 or bf16. `s`, `weight` and
/// one number per row are saved for backward.
///
/// ```
/// use taipan::{DType, Device, Tensor, add_rms_norm};
///
/// let x = Tensor::full(&[1, 2], 1.5, DType::F16, &Device::Cpu)?;
/// let residual = Tensor::full(&[1, 2], 2.5, DType::F32, &Device::Cpu)?;
/// let weight = Tensor::ones(&[2], DType::F16, &Device::Cpu)?;
/// let (y, s) = add_rms_norm(&x, &residual, &weight, 0.0)?;
/// assert_eq!((y.dtype(), s.dtype()), (DType::F16, DType::F32));
/// assert_eq!(s.read_blocking::<f32>()?, [4.0, 4.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn add_rms_norm(
    x: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let op = RmsNorm { name: "add_rms_norm", eps, weighted: true, with: With::Residual };
    let mut results = apply(op, &[x, weight, residual])?.into_iter();
    let mut next = || results.next().expect("add_rms_norm has two results");
    Ok((next(), next()))
}

/// Inputs `x`, `weight` if there is one, and what comes [with](With) it; results `y` and, with a
/// residual, `s`.
struct RmsNorm {
    /// For errors.
    name: &'static str,
    eps: f64,
    weighted: bool,
    with: With,
}

/// The other input of the size of `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum With {
    Nothing,
    /// The norm is that of `s = x + residual`.
    Residual,
    Gate(GateOrder),
}

impl RmsNorm {
    /// `weight` and the other input, given what follows `x`.
    fn optional<'a, T>(&self, inputs: &'a [T]) -> (Option<&'a T>, Option<&'a T>) {
        let (weight, other) = inputs.split_at(self.weighted as usize);
        (weight.first(), other.first())
    }
}

impl Op for RmsNorm {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        let residual = self.with == With::Residual;
        match slot {
            // With a residual, `s` is saved instead.
            Slot::Input(0) => !residual,
            Slot::Input(1) if self.weighted => true,
            Slot::Input(_) => !residual,
            Slot::Output(i) => i == 1,
        }
    }

    /// With `ŝ = s·rstd` and `dŝ = dy ⊙ weight`:
    /// `ds = rstd·(dŝ − ŝ·mean(dŝ ⊙ ŝ)) + (the upstream of s)`, `dweight = Σ dy ⊙ ŝ` over the rows.
    ///
    /// Gate first: `s = x ⊙ silu(gate)`, `dx = ds ⊙ silu(gate)`, `dgate = ds ⊙ x ⊙ silu'(gate)`.
    /// Norm first: `dgate = dy ⊙ ŝ ⊙ weight ⊙ silu'(gate)`, and the rest is of `dy ⊙ silu(gate)`.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let residual = self.with == With::Residual;
        let (s, rstd) = match residual {
            true => (saved.output(1), saved.output(2)),
            false => (saved.input(0), saved.output(1)),
        };
        let (dy, weight) = (&dys[0], self.weighted.then(|| saved.input(1)));
        let gate = matches!(self.with, With::Gate(_)).then(|| saved.input(saved.specs.len() - 1));
        // `dgate`; or `ds` in the type of `x`, if `s` has another.
        let has_second = gate.is_some() || dy.dtype() != s.dtype();
        let second = has_second.then(|| dy.spec.clone());
        // On a GPU `dweight` is left in terms, unless these are too many.
        let terms = weight.map_or(0, |weight| gpu::terms(&dy.spec, weight.len()));
        let in_terms = *dy.device() != Device::Cpu && (1..=Terms::MAX_ROWS).contains(&terms);
        let dweight = weight.map(|weight| match in_terms {
            true => Spec::new(self.name, &[terms, weight.len()], DType::F32),
            false => Ok(weight.spec.clone()),
        });
        let specs = [s.spec.clone()].into_iter().chain(second).chain(dweight.transpose()?);
        let inputs: Vec<_> =
            [dy, s, rstd].into_iter().chain(weight).chain(gate).chain(dys.get(1)).collect();
        let cpu = |io: CpuIo| cpu::backward(self, io);
        let gpu = |io: GpuIo| gpu::backward(self, io);
        let grads = compute((self.name, "backward"), &inputs, specs.collect(), cpu, gpu)?;
        let mut grads = grads.into_iter();
        let (ds, second) = (grads.next(), if has_second { grads.next() } else { None });
        let mut dweight = grads.next();
        if let (Some(weight), Some(tensor)) = (weight, dweight.take_if(|_| in_terms)) {
            let spec = weight.spec.clone();
            saved.sum_later(1, Terms { tensor, first: 0, rows: terms, spec });
        }
        let dweight = self.weighted.then_some(dweight);
        Ok(match self.with {
            With::Nothing => [ds].into_iter().chain(dweight).collect(),
            With::Residual => {
                [second.or_else(|| ds.clone())].into_iter().chain(dweight).chain([ds]).collect()
            }
            With::Gate(_) => [ds].into_iter().chain(dweight).chain([second]).collect(),
        })
    }
}

impl Kernel for RmsNorm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (op, x) = (self.name, inputs[0]);
        let (weight, other) = self.optional(&inputs[1..]);
        let eps = self.eps;
        ensure!(op, eps >= 0.0 && eps.is_finite(), "eps is {eps}, expected 0 or a number above");
        x.dtype().ensure_float(op, "the input")?;
        let [.., n] = *x.shape() else {
            let why = "the input is [], expected 1 dimension or more".into();
            return Err(Error::Shape { op, why });
        };
        if let Some(weight) = weight {
            let (found, shape) = (weight.shape(), x.shape());
            let is_end = !found.is_empty() && shape.ends_with(found);
            ensure!(
                op,
                is_end,
                "the weight is {found:?}, expected [{n}] or more of the last dimensions of {shape:?}"
            );
            weight.dtype().ensure(x.dtype(), op, "the weight")?;
        }
        let Some(other) = other else { return Ok(smallvec![x.clone()]) };
        let is_residual = self.with == With::Residual;
        let name = if is_residual { "the residual" } else { "the gate" };
        let (found, expected) = (other.shape(), x.shape());
        ensure!(op, found == expected, "{name} is {found:?}, expected {expected:?}");
        if !is_residual {
            other.dtype().ensure(x.dtype(), op, name)?;
            return Ok(smallvec![x.clone()]);
        }
        if other.dtype() != x.dtype() {
            other.dtype().ensure(x.dtype().wider(), op, name)?;
        }
        Ok(smallvec![x.clone(), (*other).clone()])
    }

    /// `rstd = 1/√(mean(s²) + eps)` of each row.
    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        let (y, rows) = (&outputs[0], rows(&outputs[0]));
        let rstd = Spec::new(self.name, &[rows], y.dtype().wider());
        vec![rstd.expect("not larger than `y`")]
    }

    fn cpu(&self, io: CpuIo) -> Result<()> {
        cpu::forward(self, io)
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        gpu::forward(self, io)
    }
}

fn row_len(spec: &Spec) -> usize {
    spec.shape().last().copied().unwrap_or(1)
}

/// The number of rows; 0 if they are empty.
fn rows(spec: &Spec) -> usize {
    spec.len().checked_div(row_len(spec)).unwrap_or(0)
}

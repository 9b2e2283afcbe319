//! RMS norm along the last dimension, alone or after the addition of a residual.

mod cpu;
mod gpu;

#[cfg(test)]
pub(super) use self::gpu::programs;
use crate::autograd::{Op, Saved, Slot, apply, apply_one};
use crate::error::{Error, Result, ensure};
use crate::kernel::{CpuIo, GpuIo, Kernel, compute};
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::terms::Terms;
use crate::{DType, Device};

/// `x·weight / √(mean(x²) + eps)`, the mean taken along the last dimension.
///
/// | tensor | shape |
/// |---|---|
/// | `x` | `[…, n]` |
/// | `weight` | `[n]` |
/// | result | `[…, n]` |
///
/// Both have the same float type. Sums are accumulated in f32 (f64 for f64), and squares neither
/// overflow nor underflow: a row of 1e25 or of 1e-25 in f32 is as accurate as one of 1, as long as
/// `√(mean(x²) + eps)` and its inverse are normal numbers.
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
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    apply_one(RmsNorm { name: "rms_norm", eps }, &[x, weight])
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
    let op = RmsNorm { name: "add_rms_norm", eps };
    let mut results = apply(op, &[x, weight, residual])?.into_iter();
    let mut next = || results.next().expect("add_rms_norm has two results");
    Ok((next(), next()))
}

/// Inputs `x`, `weight` and optionally `residual`; results `y` and, with a residual, `s`.
struct RmsNorm {
    /// For errors.
    name: &'static str,
    eps: f64,
}

impl Op for RmsNorm {
    fn saves(&self, slot: Slot, needs: &[bool]) -> bool {
        match slot {
            Slot::Input(0) => needs.len() == 2, // with a residual, `s` is saved instead
            Slot::Input(i) => i == 1,
            Slot::Output(i) => i == 1,
        }
    }

    /// With `ŝ = s·rstd` and `dŝ = dy ⊙ weight`:
    /// `ds = rstd·(dŝ − ŝ·mean(dŝ ⊙ ŝ)) + (the upstream of s)`, `dweight = Σ dy ⊙ ŝ` over the rows.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (s, rstd) = match dys {
            [_, _] => (saved.output(1), saved.output(2)),
            _ => (saved.input(0), saved.output(1)),
        };
        let (dy, weight) = (&dys[0], saved.input(1));
        // If `x` has another type than `s`, `ds` in that type as well.
        let dx = (dy.dtype() != s.dtype()).then(|| dy.spec.clone());
        // On a GPU `dweight` is left in terms, unless these are too many.
        let terms = gpu::terms(&dy.spec);
        let in_terms = *dy.device() != Device::Cpu && (1..=Terms::MAX_ROWS).contains(&terms);
        let dweight = match in_terms {
            true => Spec::new(self.name, &[terms, weight.len()], DType::F32)?,
            false => weight.spec.clone(),
        };
        let specs = [dweight, s.spec.clone()].into_iter().chain(dx).collect();
        let inputs: Vec<_> = [dy, s, weight, rstd].into_iter().chain(dys.get(1)).collect();
        let cpu = |io: CpuIo| cpu::backward(self, io);
        let grads = compute((self.name, "backward"), &inputs, specs, cpu, gpu::backward)?;
        let mut grads = grads.into_iter();
        let (mut dweight, ds) = (grads.next(), grads.next());
        let dx = grads.next().or_else(|| ds.clone());
        let spec = weight.spec.clone();
        if let Some(tensor) = dweight.take_if(|_| in_terms) {
            saved.sum_later(1, Terms { tensor, first: 0, rows: terms, spec });
        }
        Ok([dx, dweight, ds].into_iter().take(saved.specs.len()).collect())
    }
}

impl Kernel for RmsNorm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (op, x, weight) = (self.name, inputs[0], inputs[1]);
        let eps = self.eps;
        ensure!(op, eps >= 0.0 && eps.is_finite(), "eps is {eps}, expected 0 or a number above");
        x.dtype().ensure_float(op, "the input")?;
        let [.., n] = *x.shape() else {
            let why = "the input is [], expected 1 dimension or more".into();
            return Err(Error::Shape { op, why });
        };
        ensure!(op, weight.shape() == [n], "the weight is {:?}, expected [{n}]", weight.shape());
        weight.dtype().ensure(x.dtype(), op, "the weight")?;
        let Some(residual) = inputs.get(2) else { return Ok(vec![x.clone()]) };
        let (found, expected) = (residual.shape(), x.shape());
        ensure!(op, found == expected, "the residual is {found:?}, expected {expected:?}");
        if residual.dtype() != x.dtype() {
            residual.dtype().ensure(x.dtype().wider(), op, "the residual")?;
        }
        Ok(vec![x.clone(), (*residual).clone()])
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

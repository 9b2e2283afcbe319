//! RMS norm along the last dimension, alone or after the addition of a residual.

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply, apply_one};
use crate::cpu::CpuBuffer;
use crate::cpu::fold;
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::dtype::{Element, Float, Real, fill_wide, widened, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{ELEMENTS, GROUP, LINES, Launch, Program, params, width};
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run};
use crate::ops::reduce::Folding;
use crate::spec::Spec;
use crate::tensor::Tensor;

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
        let kernel = RmsNormGrad { name: self.name };
        let inputs = [&dys[0], s, saved.input(1), rstd].into_iter().chain(dys.get(1));
        let mut grads = run(&kernel, &inputs.collect::<Vec<_>>())?.into_iter();
        let (dweight, ds) = (grads.next(), grads.next());
        let dx = grads.next().or_else(|| ds.clone());
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
            residual.dtype().ensure(wide(x.dtype()), op, "the residual")?;
        }
        Ok(vec![x.clone(), (*residual).clone()])
    }

    /// `rstd = 1/√(mean(s²) + eps)` of each row.
    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        let (y, rows) = (&outputs[0], rows(&outputs[0]));
        let rstd = Spec::new(self.name, &[rows], wide(y.dtype()));
        vec![rstd.expect("not larger than `y`")]
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let mixed = inputs.get(2).is_some_and(|r| r.spec.dtype() != inputs[0].spec.dtype());
        with_dtype!(inputs[0].spec.dtype(), T: Float => match mixed {
            true => self.forward::<T, <T as Float>::Acc>(inputs, outputs),
            false => self.forward::<T, T>(inputs, outputs),
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let (x, n) = (&inputs[0], row_len(inputs[0].spec));
        // Bound in place of absent outputs: a buffer cannot be bound twice for writing.
        let [no_s, no_rstd] =
            [gpu.scratch(self.name, 0)?, gpu.scratch(self.name, 4 * rows(x.spec))?];
        let residual = inputs.get(2);
        let results = 1 + residual.is_some() as usize;
        let s = residual.map_or(&no_s, |_| outputs[1].data);
        let rstd = outputs.get(results).map_or(&no_rstd, |rstd| rstd.data);
        let stream = residual.unwrap_or(x);
        gpu.launch(Launch {
            name: self.name,
            program: value_program(x.spec.dtype(), stream.spec.dtype(), width(n)),
            params: RmsNormParams {
                lines: rows(x.spec) as u32,
                n: n as u32,
                add: residual.is_some() as u32,
                eps: self.eps as f32,
                root_eps: self.eps.sqrt() as f32,
            },
            inputs: &[x.data.all(), inputs[1].data.all(), stream.data.all()],
            outputs: &[outputs[0].data.all(), s.all(), rstd.all()],
            groups: rows(x.spec),
            work: 2 * x.spec.len() as u64,
        })
    }
}

impl RmsNorm {
    /// `R` is the type of the residual: `T` or its wider type.
    fn forward<T: Float, R: Float<Acc = T::Acc>>(
        &self,
        inputs: &[View<&CpuBuffer>],
        outputs: &mut [View<&mut CpuBuffer>],
    ) {
        let n = row_len(inputs[0].spec);
        if n == 0 {
            return;
        }
        let x = inputs[0].as_slice::<T>();
        let mut buffer = vec![T::Acc::ZERO; n];
        let weight = widened(inputs[1].as_slice::<T>(), &mut buffer);
        let residual = inputs.get(2).map(|residual| residual.as_slice::<R>());
        let (y, rest) = outputs.split_at_mut(1);
        let (s, rstd) = rest.split_at_mut(residual.is_some() as usize);

        let block = rows_per_task(n);
        let y = y[0].as_mut_slice::<T>().chunks_mut(block * n);
        let mut s = s.first_mut().map(|s| s.as_mut_slice::<R>().chunks_mut(block * n));
        let mut rstd = rstd.first_mut().map(|rstd| rstd.as_mut_slice::<T::Acc>().chunks_mut(block));
        let tasks = y.enumerate().map(|(i, y)| {
            let s = s.as_mut().and_then(Iterator::next).unwrap_or_default();
            let rstd = rstd.as_mut().and_then(Iterator::next).unwrap_or_default();
            (i * block, y, s, rstd)
        });
        for_tasks(tasks.collect(), x.len(), |(first, y, s, rstd)| {
            let [mut wide, mut other, mut out] = [(); 3].map(|()| vec![T::Acc::ZERO; n]);
            for (i, y) in y.chunks_mut(n).enumerate() {
                let at = (first + i) * n..(first + i + 1) * n;
                let mut row = widened(&x[at.clone()], &mut wide);
                if let Some(residual) = residual {
                    let residual = widened(&residual[at], &mut other);
                    sum(row, residual, &mut out);
                    R::narrow(&out, &mut s[i * n..(i + 1) * n]);
                    row = &out;
                }
                let row_rstd = self.rstd(row);
                if let Some(rstd) = rstd.get_mut(i) {
                    *rstd = row_rstd;
                }
                fill_wide(y, &mut other, |y| scale(row, row_rstd, weight, y));
            }
        });
    }

    /// `1/√(mean(s²) + eps)`. If squares leave the range of the type, those of `s/m` are used, with
    /// `m` the larger of `max|s|` and `√eps`.
    fn rstd<A: Real>(&self, s: &[A]) -> A {
        let (n, eps) = (A::of(s.len() as f64), A::of(self.eps));
        let mean = fold::dot(s, s) / n + eps;
        // Between these bounds, also in f32, no significant square has overflowed or underflowed.
        if mean > A::of(2f64.powi(-100)) && mean < A::of(2f64.powi(126)) {
            return A::ONE / mean.sqrt();
        }
        let root_eps = A::of(self.eps.sqrt());
        let magnitude = |x: A| if x < A::ZERO { -x } else { x };
        let m = s.iter().fold(root_eps, |m, s| fold::larger(m, magnitude(*s)));
        // Only zeros, an infinity, or NaN: the limits are ∞, 0 and NaN.
        if !(m > A::ZERO && m < A::of(f64::INFINITY)) {
            return A::ONE / m;
        }
        let scaled: Vec<A> = s.iter().map(|s| *s / m).collect();
        let root = root_eps / m;
        A::ONE / (m * (fold::dot(&scaled, &scaled) / n + root * root).sqrt())
    }
}

/// `dweight`, `ds` and, if `x` has another type than `s`, `ds` in that type; from `dy`, `s`,
/// `weight`, `rstd` and optionally the upstream of `s`.
struct RmsNormGrad {
    name: &'static str,
}

impl Kernel for RmsNormGrad {
    fn name(&self) -> &'static str {
        self.name
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (dy, s, weight) = (inputs[0], inputs[1], inputs[2]);
        let dx = (dy.dtype() != s.dtype()).then(|| dy.clone());
        Ok([weight.clone(), s.clone()].into_iter().chain(dx).collect())
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let mixed = outputs.len() == 3;
        with_dtype!(inputs[0].spec.dtype(), T: Float => match mixed {
            true => self.backward::<T, <T as Float>::Acc>(inputs, outputs),
            false => self.backward::<T, T>(inputs, outputs),
        })
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let [dy, s, weight, rstd] = [0, 1, 2, 3].map(|i| inputs[i].data.all());
        let [dweight, ds] = [0, 1].map(|i| outputs[i].data.all());
        let (elem, stream) = (inputs[0].spec.dtype(), inputs[1].spec.dtype());
        let (n, rows) = (row_len(inputs[0].spec), rows(inputs[0].spec));
        let no_dx = gpu.scratch(self.name, 0)?;
        gpu.launch(Launch {
            name: self.name,
            program: grad_program(elem, stream, width(n)),
            params: GradParams {
                lines: rows as u32,
                n: n as u32,
                add: inputs.get(4).is_some() as u32,
                split: outputs.get(2).is_some() as u32,
            },
            inputs: &[dy, s, weight, rstd, inputs.get(4).map_or(s, |upstream| upstream.data.all())],
            outputs: &[ds, outputs.get(2).map_or(&no_dx, |dx| dx.data).all()],
            groups: rows,
            work: 3 * (rows * n) as u64,
        })?;
        if rows == 0 {
            return gpu.fill(self.name, outputs[0].data, 0);
        }
        let blocks = rows.div_ceil(ROWS);
        let partial = gpu.scratch(self.name, 4 * blocks * n)?;
        gpu.launch(Launch {
            name: self.name,
            program: weight_program(elem, stream),
            params: WeightParams { len: (blocks * n) as u32, rows: rows as u32, n: n as u32 },
            inputs: &[dy, s, rstd],
            outputs: &[partial.all()],
            groups: (blocks * n).div_ceil(GROUP),
            work: (rows * n) as u64,
        })?;
        Folding::sum(self.name, DType::F32, elem).launch(
            gpu,
            partial.all(),
            [1, blocks, n],
            dweight,
        )
    }
}

impl RmsNormGrad {
    /// `R` is the type of `s`: `T` or its wider type.
    fn backward<T: Float, R: Float<Acc = T::Acc>>(
        &self,
        inputs: &[View<&CpuBuffer>],
        outputs: &mut [View<&mut CpuBuffer>],
    ) -> Result<()> {
        let (n, rows) = (row_len(inputs[0].spec), rows(inputs[0].spec));
        if n == 0 {
            return Ok(());
        }
        let (dy, s) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<R>());
        let mut buffer = vec![T::Acc::ZERO; n];
        let weight = widened(inputs[2].as_slice::<T>(), &mut buffer);
        let rstd = inputs[3].as_slice::<T::Acc>();
        let upstream = inputs.get(4).map(|upstream| upstream.as_slice::<R>());
        let (dweight, rest) = outputs.split_at_mut(1);
        let (ds, dx) = rest.split_at_mut(1);

        let block = rows_per_task(n);
        // [blocks, n]
        let mut partial =
            CpuBuffer::scratch(self.name, rows.div_ceil(block) * n * size_of::<T::Acc>())?;
        let ds = ds[0].as_mut_slice::<R>().chunks_mut(block * n);
        let mut dx = dx.first_mut().map(|dx| dx.as_mut_slice::<T>().chunks_mut(block * n));
        let partials = partial.as_mut_slice::<T::Acc>().chunks_mut(n);
        let tasks = ds.zip(partials).enumerate().map(|(i, (ds, partial))| {
            let dx = dx.as_mut().and_then(Iterator::next).unwrap_or_default();
            (i * block, ds, dx, partial)
        });
        for_tasks(tasks.collect(), dy.len(), |(first, ds, dx, dweight)| {
            dweight.fill(T::Acc::ZERO);
            let [mut wide, mut other, mut unit, mut dunit] =
                [(); 4].map(|()| vec![T::Acc::ZERO; n]);
            for (i, ds) in ds.chunks_mut(n).enumerate() {
                let (row, at) = (first + i, (first + i) * n..(first + i + 1) * n);
                let dy = widened(&dy[at.clone()], &mut wide);
                let s = widened(&s[at.clone()], &mut other);
                let rstd = rstd[row];
                let (unit, dunit) = (&mut unit, &mut dunit);
                unit_grad(GradRow { dy, s, weight, rstd, unit, dunit, dweight });
                let mean = fold::dot(unit, dunit) / T::Acc::of(n as f64);
                project(unit, dunit, mean, rstd);
                if let Some(upstream) = upstream {
                    fold::add(dunit, widened(&upstream[at], &mut wide));
                }
                R::narrow(dunit, ds);
                if let Some(dx) = dx.get_mut(i * n..(i + 1) * n) {
                    T::narrow(dunit, dx);
                }
            }
        });
        let mut total = vec![T::Acc::ZERO; n];
        partial.as_slice::<T::Acc>().chunks(n).for_each(|partial| fold::add(&mut total, partial));
        T::narrow(&total, dweight[0].as_mut_slice::<T>());
        Ok(())
    }
}

/// The inputs and outputs of a row of the gradient.
struct GradRow<'a, A> {
    dy: &'a [A],
    s: &'a [A],
    weight: &'a [A],
    rstd: A,
    unit: &'a mut [A],
    dunit: &'a mut [A],
    dweight: &'a mut [A],
}

vectorized! {
    /// `out = a + b`
    fn sum<I: Isa, A: Real>(a: &[A], b: &[A], out: &mut [A]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = *a + *b;
        }
    }

    /// `y = s·rstd ⊙ weight`
    fn scale<I: Isa, A: Real>(s: &[A], rstd: A, weight: &[A], y: &mut [A]) {
        for ((y, s), weight) in y.iter_mut().zip(s).zip(weight) {
            *y = *s * rstd * *weight;
        }
    }

    /// `unit = ŝ = s·rstd`, `dunit = dy ⊙ weight`, `dweight += dy ⊙ ŝ`
    fn unit_grad<I: Isa, A: Real>(row: GradRow<A>) {
        let n = row.dy.len();
        let (dy, s, weight) = (row.dy, &row.s[..n], &row.weight[..n]);
        let (unit, dunit) = (&mut row.unit[..n], &mut row.dunit[..n]);
        let dweight = &mut row.dweight[..n];
        for i in 0..n {
            unit[i] = s[i] * row.rstd;
            dunit[i] = dy[i] * weight[i];
            dweight[i] = dy[i].fma::<I>(unit[i], dweight[i]);
        }
    }

    /// `dunit = rstd·(dunit − unit·mean)`
    fn project<I: Isa, A: Real>(unit: &[A], dunit: &mut [A], mean: A, rstd: A) {
        for (dunit, unit) in dunit.iter_mut().zip(unit) {
            *dunit = rstd * (-*unit).fma::<I>(mean, *dunit);
        }
    }
}

params! { struct RmsNormParams { lines: u32, n: u32, add: u32, eps: f32, root_eps: f32 } }
params! { struct GradParams { lines: u32, n: u32, add: u32, split: u32 } }
params! { struct WeightParams { len: u32, rows: u32, n: u32 } }

/// Rows of a partial sum of `dweight`.
const ROWS: usize = 64;

/// `stream` is the type of the residual.
fn value_program(elem: DType, stream: DType, width: u32) -> Program {
    Program::new::<RmsNormParams>(
        &[include_str!("../gpu/math.wgsl"), include_str!("rms_norm.wgsl"), LINES],
        &[("Elem", elem), ("Stream", stream)],
        &[("WIDTH", width)],
    )
}

fn grad_program(elem: DType, stream: DType, width: u32) -> Program {
    Program::new::<GradParams>(
        &[include_str!("rms_norm_grad.wgsl"), LINES],
        &[("Elem", elem), ("Stream", stream)],
        &[("WIDTH", width)],
    )
}

fn weight_program(elem: DType, stream: DType) -> Program {
    Program::new::<WeightParams>(
        &[include_str!("rms_norm_dweight.wgsl"), ELEMENTS],
        &[("Elem", elem), ("Stream", stream)],
        &[("ROWS", ROWS as u32)],
    )
}

/// The type of sums.
fn wide(dtype: DType) -> DType {
    with_dtype!(dtype, T: Float => <<T as Float>::Acc as Element>::DTYPE)
}

fn row_len(spec: &Spec) -> usize {
    spec.shape().last().copied().unwrap_or(1)
}

/// The number of rows; 0 if they are empty.
fn rows(spec: &Spec) -> usize {
    spec.len().checked_div(row_len(spec)).unwrap_or(0)
}

/// Rows of a task, and of a partial sum of `dweight`.
fn rows_per_task(n: usize) -> usize {
    (GRAIN / n).max(64)
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let mut all = Vec::new();
    for stream in [elem, DType::F32] {
        all.push(weight_program(elem, stream));
        for width in crate::gpu::WIDTHS {
            all.extend([value_program(elem, stream, width), grad_program(elem, stream, width)]);
        }
    }
    all
}

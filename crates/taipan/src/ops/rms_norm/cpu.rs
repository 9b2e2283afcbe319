//! RMS norm on the CPU.

use super::{RmsNorm, row_len, rows};
use crate::cpu::isa::vectorized;
use crate::cpu::map::add;
use crate::cpu::reduce::{dot, larger};
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::cpu::{CpuBuffer, CpuView, CpuViewMut};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::Result;
use crate::kernel::CpuIo;

pub(super) fn forward(op: &RmsNorm, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    let mixed = inputs.get(2).is_some_and(|r| r.spec.dtype() != inputs[0].spec.dtype());
    with_dtype!(inputs[0].spec.dtype(), T: Float => match mixed {
        true => op.forward::<T, <T as Float>::Acc>(inputs, outputs),
        false => op.forward::<T, T>(inputs, outputs),
    });
    Ok(())
}

pub(super) fn backward(op: &RmsNorm, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    let mixed = outputs.len() == 3;
    with_dtype!(inputs[0].spec.dtype(), T: Float => match mixed {
        true => op.backward::<T, <T as Float>::Acc>(inputs, outputs),
        false => op.backward::<T, T>(inputs, outputs),
    })
}

impl RmsNorm {
    /// `R` is the type of the residual: `T` or its wider type.
    fn forward<T: Float, R: Float<Acc = T::Acc>>(
        &self,
        inputs: &[CpuView],
        outputs: &mut [CpuViewMut],
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
        let mean = dot(s, s) / n + eps;
        // Between these bounds, also in f32, no significant square has overflowed or underflowed.
        if mean > A::of(2f64.powi(-100)) && mean < A::of(2f64.powi(126)) {
            return A::ONE / mean.sqrt();
        }
        let root_eps = A::of(self.eps.sqrt());
        let magnitude = |x: A| if x < A::ZERO { -x } else { x };
        let m = s.iter().fold(root_eps, |m, s| larger(m, magnitude(*s)));
        // Only zeros, an infinity, or NaN: the limits are ∞, 0 and NaN.
        if !(m > A::ZERO && m < A::of(f64::INFINITY)) {
            return A::ONE / m;
        }
        let scaled: Vec<A> = s.iter().map(|s| *s / m).collect();
        let root = root_eps / m;
        A::ONE / (m * (dot(&scaled, &scaled) / n + root * root).sqrt())
    }

    /// `R` is the type of `s`: `T` or its wider type.
    fn backward<T: Float, R: Float<Acc = T::Acc>>(
        &self,
        inputs: &[CpuView],
        outputs: &mut [CpuViewMut],
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
                let mean = dot(unit, dunit) / T::Acc::of(n as f64);
                project(unit, dunit, mean, rstd);
                if let Some(upstream) = upstream {
                    add(dunit, widened(&upstream[at], &mut wide));
                }
                R::narrow(dunit, ds);
                if let Some(dx) = dx.get_mut(i * n..(i + 1) * n) {
                    T::narrow(dunit, dx);
                }
            }
        });
        let mut total = vec![T::Acc::ZERO; n];
        partial.as_slice::<T::Acc>().chunks(n).for_each(|partial| add(&mut total, partial));
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

/// Rows of a task, and of a partial sum of `dweight`.
fn rows_per_task(n: usize) -> usize {
    (GRAIN / n).max(64)
}

//! RMS norm on the CPU.

use std::array::from_fn;

use super::{GateOrder, RmsNorm, With, row_len, rows};
use crate::cpu::isa::vectorized;
use crate::cpu::map::{add, multiply, multiply_silu};
use crate::cpu::reduce::{dot, larger};
use crate::cpu::threads::{self, GRAIN, for_tasks, try_for_tasks};
use crate::cpu::{CpuBuffer, CpuView, CpuViewMut};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::Result;
use crate::function::SiluParts;
use crate::kernel::CpuIo;

pub(super) fn forward(op: &RmsNorm, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    // The type of a residual; a gate has that of `x`.
    let last = inputs[inputs.len() - 1].spec.dtype();
    let mixed = last != inputs[0].spec.dtype();
    with_dtype!(inputs[0].spec.dtype(), T: Float => match mixed {
        true => op.forward::<T, <T as Float>::Acc>(inputs, outputs),
        false => op.forward::<T, T>(inputs, outputs),
    })
}

pub(super) fn backward(op: &RmsNorm, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    let mixed = inputs[1].spec.dtype() != inputs[0].spec.dtype();
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
    ) -> Result<()> {
        let (x, n) = (inputs[0].as_slice::<T>(), row_len(inputs[0].spec));
        let (weight, other) = self.optional(&inputs[1..]);
        let mut wide_weight = CpuBuffer::EMPTY;
        let weight = widened_weight::<T>(weight, n, &mut wide_weight)?;
        if weight.is_empty() {
            return Ok(());
        }
        let is_residual = self.with == With::Residual;
        let residual = other.filter(|_| is_residual).map(|residual| residual.as_slice::<R>());
        let gate = other.filter(|_| !is_residual).map(|gate| gate.as_slice::<T>());
        let (y, rest) = outputs.split_at_mut(1);
        let (s, rstd) = rest.split_at_mut(is_residual as usize);

        let block = rows_per_task(weight.len(), n);
        let y = y[0].as_mut_slice::<T>().chunks_mut(block * n);
        let mut s = s.first_mut().map(|s| s.as_mut_slice::<R>().chunks_mut(block * n));
        let mut rstd = rstd.first_mut().map(|rstd| rstd.as_mut_slice::<T::Acc>().chunks_mut(block));
        let tasks = y.enumerate().map(|(i, y)| {
            let s = s.as_mut().and_then(Iterator::next).unwrap_or_default();
            let rstd = rstd.as_mut().and_then(Iterator::next).unwrap_or_default();
            (i * block, y, s, rstd)
        });
        let threads = if x.len() < GRAIN { 1 } else { threads::count() };
        try_for_tasks(tasks, threads, |_, (first, y, s, rstd)| {
            let mut room = CpuBuffer::scratch(self.name, 4 * n * size_of::<T::Acc>())?;
            let mut room = room.as_mut_slice::<T::Acc>().chunks_exact_mut(n);
            let [wide, other, out, wide_gate] =
                from_fn(|_| room.next().expect("room for four rows"));
            let rows = y.chunks_mut(n).zip(weight.chunks(n).cycle()).enumerate();
            for (i, (y, weight)) in rows {
                let at = (first + i) * n..(first + i + 1) * n;
                let mut row = widened(&x[at.clone()], wide);
                let gate = gate.map(|gate| widened(&gate[at.clone()], wide_gate));
                match (self.with, residual, gate) {
                    (With::Residual, Some(residual), _) => {
                        sum(row, widened(&residual[at], other), out);
                        R::narrow(out, &mut s[i * n..(i + 1) * n]);
                        row = out;
                    }
                    (With::Gate(GateOrder::GateFirst), _, Some(gate)) => {
                        out.copy_from_slice(row);
                        multiply_silu(out, gate);
                        row = out;
                    }
                    _ => {}
                }
                let row_rstd = self.rstd(row);
                if let Some(rstd) = rstd.get_mut(i) {
                    *rstd = row_rstd;
                }
                fill_wide(y, other, |y| {
                    scale(row, row_rstd, weight, y);
                    if let (With::Gate(GateOrder::NormFirst), Some(gate)) = (self.with, gate) {
                        multiply_silu(y, gate);
                    }
                });
            }
            Ok(())
        })
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
        let (dy, s) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<R>());
        let rstd = inputs[2].as_slice::<T::Acc>();
        let (weight, other) = self.optional(&inputs[3..]);
        let mut wide_weight = CpuBuffer::EMPTY;
        let weight = widened_weight::<T>(weight, n, &mut wide_weight)?;
        if weight.is_empty() {
            return Ok(());
        }
        let is_residual = self.with == With::Residual;
        let upstream = other.filter(|_| is_residual).map(|upstream| upstream.as_slice::<R>());
        let gate = other.filter(|_| !is_residual).map(|gate| gate.as_slice::<T>());
        let (grads, dweight) = outputs.split_at_mut(outputs.len() - self.weighted as usize);
        let (ds, second) = grads.split_at_mut(1);

        let block = rows_per_task(weight.len(), n);
        // [blocks, groups, n]
        let len = rows.div_ceil(block) * weight.len() * size_of::<T::Acc>();
        let mut partial = CpuBuffer::scratch(self.name, len)?;
        let ds = ds[0].as_mut_slice::<R>().chunks_mut(block * n);
        let mut second =
            second.first_mut().map(|second| second.as_mut_slice::<T>().chunks_mut(block * n));
        let partials = partial.as_mut_slice::<T::Acc>().chunks_mut(weight.len());
        let tasks = ds.zip(partials).enumerate().map(|(i, (ds, partial))| {
            let second = second.as_mut().and_then(Iterator::next).unwrap_or_default();
            (i * block, ds, second, partial)
        });
        for_tasks(tasks, dy.len(), |(first, ds, second, dweight)| {
            dweight.fill(T::Acc::ZERO);
            let [mut wide, mut unit, mut dunit] = [(); 3].map(|()| vec![T::Acc::ZERO; n]);
            let mut gate_row = gate.map(|_| GateRow::new(n));
            for (i, ds) in ds.chunks_mut(n).enumerate() {
                let (row, at) = (first + i, (first + i) * n..(first + i + 1) * n);
                let of_group = (row * n) % weight.len()..(row * n) % weight.len() + n;
                let (weight, dweight) = (&weight[of_group.clone()], &mut dweight[of_group]);
                let second = second.get_mut(i * n..(i + 1) * n);
                R::widen(&s[at.clone()], &mut unit);
                T::widen(&dy[at.clone()], &mut dunit);
                if let (Some(row), Some(gate), With::Gate(order)) = (&mut gate_row, gate, self.with)
                {
                    T::widen(&gate[at.clone()], &mut row.derivative);
                    row.before(order, &mut unit, &mut dunit);
                }
                let rstd = rstd[row];
                unit_grad(weight, rstd, &mut unit, &mut dunit, dweight);
                if let (Some(row), With::Gate(GateOrder::NormFirst)) = (&mut gate_row, self.with) {
                    // The gradient of `silu(gate)`, but for its derivative.
                    multiply(&mut row.other, &unit);
                    multiply(&mut row.other, weight);
                }
                let mean = dot(&unit, &dunit) / T::Acc::of(n as f64);
                project(&unit, &mut dunit, mean, rstd);
                match (&mut gate_row, second, self.with) {
                    (Some(row), Some(dgate), With::Gate(order)) => {
                        row.after(order, &mut dunit);
                        fill_wide(dgate, &mut wide, |dgate| {
                            dgate.copy_from_slice(&row.other);
                            multiply(dgate, &row.derivative);
                        });
                    }
                    (_, second, _) => {
                        if let Some(upstream) = upstream {
                            add(&mut dunit, widened(&upstream[at], &mut wide));
                        }
                        if let Some(dx) = second {
                            T::narrow(&dunit, dx);
                        }
                    }
                }
                R::narrow(&dunit, ds);
            }
        });
        let mut total = vec![T::Acc::ZERO; weight.len()];
        partial.as_slice::<T::Acc>().chunks(weight.len()).for_each(|part| add(&mut total, part));
        if let Some(dweight) = dweight.first_mut() {
            T::narrow(&total, dweight.as_mut_slice::<T>());
        }
        Ok(())
    }
}

/// The gate of a row of the gradient.
struct GateRow<A> {
    /// `silu'(gate)`; before it is computed, `gate`.
    derivative: Vec<A>,
    /// `silu(gate)`
    silu: Vec<A>,
    /// What `silu(gate)` was multiplied by: `x`, or the gradient; and then the gradient of
    /// `silu(gate)`.
    other: Vec<A>,
}

impl<A: Real> GateRow<A> {
    fn new(n: usize) -> GateRow<A> {
        let [derivative, silu, other] = [(); 3].map(|()| vec![A::ZERO; n]);
        GateRow { derivative, silu, other }
    }

    /// Gate first: `s = x ⊙ silu(gate)`. Norm first: `dy = dy ⊙ silu(gate)`.
    fn before(&mut self, order: GateOrder, s: &mut [A], dy: &mut [A]) {
        let gated = if order == GateOrder::GateFirst { s } else { dy };
        self.other.copy_from_slice(gated);
        apply_gate(&mut self.derivative, &mut self.silu, gated);
    }

    /// Gate first: `ds` becomes `dx`.
    fn after(&mut self, order: GateOrder, ds: &mut [A]) {
        if order == GateOrder::GateFirst {
            multiply(&mut self.other, ds);
            multiply(ds, &self.silu);
        }
    }
}

vectorized! {
    /// `out = a + b`
    fn sum<I: Isa, A: Real>(a: &[A], b: &[A], out: &mut [A]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = *a + *b;
        }
    }

    /// `gated = gated ⊙ silu(gate)`; `silu` becomes `silu(gate)`, and `gate` its derivative.
    fn apply_gate<I: Isa, A: Real>(gate: &mut [A], silu: &mut [A], gated: &mut [A]) {
        for ((gate, silu), gated) in gate.iter_mut().zip(silu).zip(gated) {
            let parts = SiluParts::new::<I>(*gate);
            *silu = parts.value;
            *gated *= parts.value;
            *gate = parts.derivative::<I>();
        }
    }

    /// `y = s·rstd ⊙ weight`
    fn scale<I: Isa, A: Real>(s: &[A], rstd: A, weight: &[A], y: &mut [A]) {
        for ((y, s), weight) in y.iter_mut().zip(s).zip(weight) {
            *y = *s * rstd * *weight;
        }
    }

    /// From `unit = s` and `dunit = dy`: `unit = ŝ = s·rstd`, `dweight += dy ⊙ ŝ`,
    /// `dunit = dy ⊙ weight`.
    fn unit_grad<I: Isa, A: Real>(
        weight: &[A],
        rstd: A,
        unit: &mut [A],
        dunit: &mut [A],
        dweight: &mut [A],
    ) {
        let n = weight.len();
        let (unit, dunit, dweight) = (&mut unit[..n], &mut dunit[..n], &mut dweight[..n]);
        for i in 0..n {
            unit[i] *= rstd;
            dweight[i] = dunit[i].fma::<I>(unit[i], dweight[i]);
            dunit[i] *= weight[i];
        }
    }

    /// `dunit = rstd·(dunit − unit·mean)`
    fn project<I: Isa, A: Real>(unit: &[A], dunit: &mut [A], mean: A, rstd: A) {
        for (dunit, unit) in dunit.iter_mut().zip(unit) {
            *dunit = rstd * (-*unit).fma::<I>(mean, *dunit);
        }
    }
}

/// `weight`, or ones: of a row of `n`, or of as many rows as there are groups.
fn widened_weight<'a, T: Float>(
    weight: Option<&CpuView<'a>>,
    n: usize,
    buffer: &'a mut CpuBuffer,
) -> Result<&'a [T::Acc]> {
    let weight = weight.map(|weight| weight.as_slice::<T>());
    if let Some(wide) = weight.and_then(T::as_acc) {
        return Ok(wide);
    }
    let len = weight.map_or(n, <[T]>::len);
    *buffer = CpuBuffer::scratch("rms_norm", len * size_of::<T::Acc>())?;
    let wide = buffer.as_mut_slice();
    match weight {
        Some(weight) => T::widen(weight, wide),
        None => wide.fill(T::Acc::ONE),
    }
    Ok(wide)
}

/// Rows of a task, and of a partial sum of `dweight`: whole weights of rows of `n`.
fn rows_per_task(weight: usize, n: usize) -> usize {
    (GRAIN / n).max(64).next_multiple_of(weight / n)
}

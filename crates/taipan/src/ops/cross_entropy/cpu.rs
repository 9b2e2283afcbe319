//! The loss on the CPU, from the logits of some classes at a time.

use crate::cpu::isa::vectorized;
use crate::cpu::reduce::{by_lanes, join, larger, max, sum};
use crate::cpu::{CpuView, CpuViewMut};
use crate::dtype::Real;

/// A row of logits, read block by block. The loss is `ln sum + (max − logit)`, in which nothing
/// overflows and large logits lose no digits.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Row<A> {
    max: A,
    /// `Σ exp(x − max)`
    sum: A,
    /// The logit of the target.
    logit: A,
}

impl<A: Real> Row<A> {
    pub(in crate::ops) const NEW: Row<A> =
        Row { max: A::NEG_INFINITY, sum: A::ZERO, logit: A::ZERO };

    pub(in crate::ops) fn load(stored: &[A]) -> Vec<Row<A>> {
        let (rows, _) = stored.as_chunks::<3>();
        rows.iter().map(|&[max, sum, logit]| Row { max, sum, logit }).collect()
    }

    /// Add the logits of the classes from `first` on.
    pub(in crate::ops) fn take(&mut self, first: usize, logits: &[A], target: u32) {
        let Some(most) = max(logits) else { return };
        let max = larger(self.max, most);
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
    pub(in crate::ops) fn grad(
        &self,
        first: usize,
        logits: &mut [A],
        target: Option<u32>,
        scale: A,
    ) {
        let Some(target) = target else { return logits.fill(A::ZERO) };
        scaled_exp(logits, self.max, scale / self.sum);
        if let Some(x) = (target as usize).checked_sub(first).and_then(|i| logits.get_mut(i)) {
            *x = *x - scale;
        }
    }
}

/// Store the loss and, if there are outputs for them, the rows and the count.
pub(in crate::ops) fn store<A: Real>(
    rows: &[Row<A>],
    targets: &[u32],
    ignore: Option<u32>,
    outputs: &mut [CpuViewMut],
) {
    let counts = |target: &&u32| Some(**target) != ignore;
    let mut losses = vec![A::ZERO; rows.len()];
    losses_of(rows, &mut losses);
    for (loss, target) in losses.iter_mut().zip(targets) {
        *loss = if counts(&target) { *loss } else { A::ZERO };
    }
    let count = targets.iter().filter(counts).count();
    let mean = sum(&losses) / A::of(count.max(1) as f64);
    outputs[0].as_mut_slice::<A>()[0] = mean;
    if let [_, saved, counted] = outputs {
        for (saved, row) in saved.as_mut_slice::<A>().chunks_mut(3).zip(rows) {
            saved.copy_from_slice(&[row.max, row.sum, row.logit]);
        }
        counted.as_mut_slice::<A>()[0] = A::of(count as f64);
    }
}

/// `dy/count`
pub(in crate::ops) fn scale<A: Real>(count: &CpuView, dy: &CpuView) -> A {
    dy.as_slice::<A>()[0] / count.as_slice::<A>()[0]
}

vectorized! {
    fn exp<I: Isa, A: Real>(x: A) -> A {
        x.exp::<I>()
    }

    /// `Σ exp(x − max)`
    fn sum_of_exp<I: Isa, A: Real>(x: &[A], max: A) -> A {
        join(by_lanes(x, A::ZERO, |sum, x| sum + (x - max).exp::<I>()))
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

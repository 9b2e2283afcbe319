//! A single step, as in decoding, on the CPU: the recurrence itself, without chunks.

use super::Sizes;
use super::cpu::{Decays, Inputs};
use crate::cpu::isa::vectorized;
use crate::cpu::reduce::dot;
use crate::cpu::threads::for_tasks;
use crate::dtype::{Float, Real, widened};

impl<T: Float> Inputs<'_, T> {
    /// Advance `state`, `[b, h, p, n]`, by the only step there is.
    pub(super) fn step(&self, state: &mut [T::Acc], y: &mut [T]) {
        let Sizes { r, h, p, n, .. } = self.sizes;
        // [b, h, r, p]
        let mut out = vec![T::Acc::ZERO; y.len()];
        let work = state.len();
        let tasks: Vec<_> =
            state.chunks_mut(p * n).zip(out.chunks_mut(r * p)).enumerate().collect();
        for_tasks(tasks, work, |(i, (state, out))| self.step_head(i / h, i % h, state, out));
        for (i, y) in y.chunks_mut(p).enumerate() {
            let (sequence, rank, head) = (i / h / r, i / h % r, i % h);
            T::narrow(&out[((sequence * h + head) * r + rank) * p..][..p], y);
        }
    }

    /// The state of a head, `[p, n]`, and its output, `[r, p]`.
    fn step_head(&self, sequence: usize, head: usize, state: &mut [T::Acc], out: &mut [T::Acc]) {
        let Sizes { r, p, n, .. } = self.sizes;
        let (chunk, group) = (self.chunk(sequence, 0), self.group_of(head));
        let decays = Decays::new(self, &chunk, head);
        let (x, d) = (self.head(self.x, &chunk, head), self.d.map_or(T::Acc::ZERO, |d| d[head]));
        let [k, q] = [self.k, self.q].map(|k| {
            let (k, mut wide) = (self.group(k, &chunk, group), vec![T::Acc::ZERO; r * n]);
            let rows = wide.chunks_mut(n).enumerate();
            rows.for_each(|(rank, to)| T::widen(&k.data[rank * k.stride..][..n], to));
            wide
        });
        let mut wide = [T::Acc::ZERO];
        let (own, unseen) = (decays.own[0], decays.scale[0] - decays.own[0]);
        let [mut inputs, mut rest] = [(); 2].map(|()| vec![T::Acc::ZERO; r]);
        for (c, state) in state.chunks_mut(n).enumerate() {
            for (rank, (input, rest)) in inputs.iter_mut().zip(&mut rest).enumerate() {
                let at = rank * x.stride + c;
                let x = widened(&x.data[at..at + 1], &mut wide)[0];
                out[rank * p + c] = d * x;
                (*input, *rest) = (own * x, unseen * x);
            }
            advance(state, decays.all, &inputs, &k);
            for (rank, q) in q.chunks(n).enumerate() {
                out[rank * p + c] += dot(state, q);
            }
            if unseen != T::Acc::ZERO {
                advance(state, T::Acc::ONE, &rest, &k);
            }
        }
    }
}

vectorized! {
    /// `state = decay·state + Σ_r inputs_r·k_r`
    fn advance<I: Isa, A: Real>(state: &mut [A], decay: A, inputs: &[A], k: &[A]) {
        let n = state.len();
        for state in state.iter_mut() {
            *state *= decay;
        }
        for (input, k) in inputs.iter().zip(k.chunks_exact(n)) {
            for (state, k) in state.iter_mut().zip(k) {
                *state = input.fma::<I>(*k, *state);
            }
        }
    }
}

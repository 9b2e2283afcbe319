//! The scan on the CPU.
//!
//! States are advanced from chunk to chunk, heads in parallel. Outputs and gradients of a chunk
//! follow from the state before it and the gradient of the state after it: chunks in parallel, the
//! heads of a group one after the other, so that sums over them have one order.

use std::ops::Range;

use super::{ChunkedScan, OP, Optional, Sizes};
use crate::cpu::gemm::{Dense, Gemm, LocalGemm, Panels, Store, Triangle, threads_for};
use crate::cpu::isa::vectorized;
use crate::cpu::map::add_scaled;
use crate::cpu::threads::try_for_tasks;
use crate::cpu::{CpuBuffer, CpuView, CpuViewMut};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::kernel::CpuIo;
use crate::product::{Layout, Product};

/// Chunks at a time, if their states are not saved.
const SEGMENT: usize = 8;

pub(super) fn forward(op: &ChunkedScan, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    with_dtype!(inputs[0].spec.dtype(), T: Float => Inputs::<T>::new(op, inputs).forward(outputs))
}

pub(super) struct Inputs<'a, T: Float> {
    pub(super) sizes: Sizes,
    pub(super) x: &'a [T],
    a: &'a [T::Acc],
    pub(super) k: &'a [T],
    pub(super) q: &'a [T],
    scale: Option<&'a [T::Acc]>,
    own_scale: Option<&'a [T::Acc]>,
    pub(super) d: Option<&'a [T::Acc]>,
    initial_state: Option<&'a [T::Acc]>,
    seq_start: Option<&'a [u32]>,
}

/// A chunk of a sequence.
#[derive(Clone)]
pub(super) struct Chunk {
    pub(super) sequence: usize,
    /// Its index among the chunks of the sequence.
    pub(super) index: usize,
    pub(super) steps: Range<usize>,
    /// Its first row among those of all sequences.
    first_row: usize,
    pub(super) rows: usize,
}

impl<'a, T: Float> Inputs<'a, T> {
    pub(super) fn new(op: &ChunkedScan, inputs: &[CpuView<'a>]) -> Self {
        let optional = |which| op.index(which).map(|i| inputs[i]);
        Inputs {
            sizes: Sizes::of(&[inputs[0].spec, inputs[1].spec, inputs[2].spec]),
            x: inputs[0].as_slice(),
            a: inputs[1].as_slice(),
            k: inputs[2].as_slice(),
            q: inputs[3].as_slice(),
            scale: optional(Optional::Scale).map(|view| view.as_slice()),
            own_scale: optional(Optional::OwnScale).map(|view| view.as_slice()),
            d: optional(Optional::D).map(|view| view.as_slice()),
            initial_state: optional(Optional::InitialState).map(|view| view.as_slice()),
            seq_start: optional(Optional::SeqStart).map(|view| view.as_slice()),
        }
    }

    pub(super) fn chunk(&self, sequence: usize, index: usize) -> Chunk {
        let Sizes { l, r, .. } = self.sizes;
        let len = self.sizes.chunk_steps();
        let steps = index * len..((index + 1) * len).min(l);
        let (first_row, rows) = ((sequence * l + steps.start) * r, steps.len() * r);
        Chunk { sequence, index, steps, first_row, rows }
    }

    /// Rows of a head, from `x` or a tensor of its shape.
    pub(super) fn head<'x>(&self, x: &'x [T], chunk: &Chunk, head: usize) -> Dense<'x, T> {
        let Sizes { h, p, .. } = self.sizes;
        let first = (chunk.first_row * h + head) * p;
        Dense { data: x.get(first..).unwrap_or_default(), stride: h * p }
    }

    /// Rows of a group, of `k` or `q`.
    pub(super) fn group<'x>(&self, k: &'x [T], chunk: &Chunk, group: usize) -> Dense<'x, T> {
        let Sizes { g, n, .. } = self.sizes;
        let first = (chunk.first_row * g + group) * n;
        Dense { data: k.get(first..).unwrap_or_default(), stride: g * n }
    }

    pub(super) fn heads(&self, group: usize) -> Range<usize> {
        let heads = self.sizes.h / self.sizes.g;
        group * heads..(group + 1) * heads
    }

    pub(super) fn group_of(&self, head: usize) -> usize {
        head / (self.sizes.h / self.sizes.g)
    }

    /// The threads for a pass over `chunks` of all sequences.
    pub(super) fn threads(&self, chunks: usize) -> usize {
        let Sizes { b, h, p, n, .. } = self.sizes;
        threads_for(b.saturating_mul(chunks * super::CHUNK).saturating_mul(h * p * n))
    }

    fn forward(&self, outputs: &mut [CpuViewMut]) -> Result<()> {
        let sizes = self.sizes;
        let [y, final_state, saved @ ..] = outputs else { unreachable!("two results") };
        let (y, state) = (y.as_mut_slice::<T>(), final_state.as_mut_slice::<T::Acc>());
        match self.initial_state {
            Some(initial_state) => state.copy_from_slice(initial_state),
            None => state.fill(T::Acc::ZERO),
        }
        if let Some(saved) = saved.first_mut() {
            let states = saved.as_mut_slice::<T::Acc>();
            self.advance(0..sizes.chunks(), state, states)?;
            return self.store_outputs(0..sizes.chunks(), states, y);
        }
        if sizes.l == 1 {
            self.step(state, y);
            return Ok(());
        }
        let len = sizes.b * sizes.h * SEGMENT.min(sizes.chunks()) * sizes.state();
        let mut states = CpuBuffer::scratch(OP, len * size_of::<T::Acc>())?;
        for first in (0..sizes.chunks()).step_by(SEGMENT) {
            let chunks = first..(first + SEGMENT).min(sizes.chunks());
            let len = sizes.b * sizes.h * chunks.len() * sizes.state();
            let states = &mut states.as_mut_slice::<T::Acc>()[..len];
            self.advance(chunks.clone(), state, states)?;
            self.store_outputs(chunks, states, y)?;
        }
        Ok(())
    }

    /// Advance `state`, `[b, h, p, n]`, through these chunks; `states`, `[b, h, chunks, p, n]`, are
    /// those before each of them.
    fn advance(
        &self,
        chunks: Range<usize>,
        state: &mut [T::Acc],
        states: &mut [T::Acc],
    ) -> Result<()> {
        let Sizes { h, p, .. } = self.sizes;
        if states.is_empty() {
            return Ok(());
        }
        let one = self.sizes.state();
        let packed = self.packed(self.k, &chunks)?;
        let tasks: Vec<_> =
            state.chunks_mut(one).zip(states.chunks_mut(chunks.len() * one)).collect();
        try_for_tasks(tasks, self.threads(chunks.len()), |i, (state, states)| {
            let (sequence, head) = (i / h, i % h);
            let mut product = StateProduct::new(&packed);
            let mut inputs = self.row_buffer()?;
            for (index, before) in chunks.clone().zip(states.chunks_mut(one)) {
                let chunk = self.chunk(sequence, index);
                let decays = Decays::new(self, &chunk, head);
                let inputs = &mut inputs.as_mut_slice()[..chunk.rows * p];
                self.widened_rows(self.x, &chunk, head, inputs);
                scale_rows(inputs, p, &decays.entering(), self.sizes.r);
                save_and_scale(state, decays.all, before);
                product.add(inputs, &chunk, self.group_of(head), state)?;
            }
            Ok(())
        })
    }

    /// `k` or `q` of these chunks, packed once for all heads of a group.
    pub(super) fn packed<'x>(
        &'x self,
        k: &'x [T],
        chunks: &Range<usize>,
    ) -> Result<PackedGroups<'x, T>> {
        let Sizes { b, g, h, n, .. } = self.sizes;
        let mut panels = Vec::new();
        if g < h {
            panels.resize_with(b * chunks.len() * g, Panels::default);
            let tasks: Vec<_> = panels.chunks_mut(g).collect();
            try_for_tasks(tasks, self.threads(chunks.len()), |i, panels: &mut [_]| {
                let chunk = self.chunk(i / chunks.len(), chunks.start + i % chunks.len());
                let gemm = LocalGemm::new();
                panels.iter_mut().enumerate().try_for_each(|(group, panels)| {
                    let k = self.group(k, &chunk, group);
                    gemm.pack_right(&k, Layout::RowMajor, [chunk.rows, n], panels)
                })
            })?;
        }
        Ok(PackedGroups { inputs: self, k, chunks: chunks.clone(), panels })
    }

    /// Memory for the rows of a head in a chunk.
    pub(super) fn row_buffer(&self) -> Result<CpuBuffer> {
        CpuBuffer::scratch(OP, super::CHUNK * self.sizes.p * size_of::<T::Acc>())
    }

    /// Rows of a head, `[rows, p]`.
    pub(super) fn widened_rows(&self, x: &[T], chunk: &Chunk, head: usize, rows: &mut [T::Acc]) {
        let p = self.sizes.p;
        let x = self.head(x, chunk, head);
        for (i, row) in rows.chunks_mut(p).enumerate() {
            T::widen(&x.data[i * x.stride..][..p], row);
        }
    }

    /// The outputs of these chunks, from the states before each.
    fn store_outputs(&self, chunks: Range<usize>, states: &[T::Acc], y: &mut [T]) -> Result<()> {
        let Sizes { h, p, r, .. } = self.sizes;
        let row = h * p;
        if y.is_empty() {
            return Ok(());
        }
        let tasks = self.split(y, r * row, &chunks);
        let one = self.sizes.state();
        try_for_tasks(tasks, self.threads(chunks.len()), |_, (chunk, y)| {
            let mut memory = Workspace::<T::Acc>::memory(self.sizes, &chunk)?;
            let mut workspace = Workspace::new(self.sizes, &chunk, &mut memory);
            for group in 0..self.sizes.g {
                self.scores(&chunk, group, &mut workspace)?;
                for head in self.heads(group) {
                    let at = (chunk.sequence * h + head) * chunks.len();
                    let at = at + chunk.index - chunks.start;
                    let state = states.get(at * one..(at + 1) * one).unwrap_or_default();
                    let decays = Decays::new(self, &chunk, head);
                    self.times_state(state, &mut workspace)?;
                    self.widened_rows(self.x, &chunk, head, workspace.x);
                    scale_rows(workspace.tile, p, &decays.before, r);
                    if let Some(d) = self.d {
                        add_scaled(workspace.tile, d[head], workspace.x);
                    }
                    decays.fill_lambda(workspace.lambda);
                    let masks = Masks {
                        scores: workspace.scores,
                        lambda: workspace.lambda,
                        scale: &decays.scale,
                        own: &decays.own,
                        r,
                    };
                    mask(&masks, workspace.masked);
                    let product =
                        product(chunk.rows, p, chunk.rows, Layout::RowMajor, Layout::RowMajor);
                    let left = Dense { data: &*workspace.masked, stride: chunk.rows };
                    let right = Dense { data: &*workspace.x, stride: p };
                    let intra = Gemm { product, left: &left, right: &right };
                    workspace.gemm.add(&intra, workspace.tile, Triangle::LowerLeft(r))?;
                    for (i, tile) in workspace.tile.chunks(p).enumerate() {
                        T::narrow(tile, &mut y[i * row + head * p..][..p]);
                    }
                }
            }
            Ok(())
        })
    }

    /// `q·kᵀ` of a group, `[rows, rows]`, for `k` of no later step than `q`; its `q` stays packed in
    /// `workspace`.
    pub(super) fn scores(
        &self,
        chunk: &Chunk,
        group: usize,
        workspace: &mut Workspace<T::Acc>,
    ) -> Result<()> {
        let (q, k) = (self.group(self.q, chunk, group), self.group(self.k, chunk, group));
        let (rows, n) = (chunk.rows, self.sizes.n);
        workspace.gemm.pack_left(&q, Layout::RowMajor, [rows, n], &mut workspace.left)?;
        workspace.gemm.pack_right(&k, Layout::Transposed, [n, rows], &mut workspace.right)?;
        workspace.gemm.multiply_triangle(
            &workspace.left,
            &workspace.right,
            workspace.scores,
            Store::Overwrite,
            Triangle::LowerSums(self.sizes.r),
        );
        Ok(())
    }

    /// `left·stateᵀ`, `[rows, p]`, in `workspace.tile`, with what is packed as `workspace.left`.
    pub(super) fn times_state(
        &self,
        state: &[T::Acc],
        workspace: &mut Workspace<T::Acc>,
    ) -> Result<()> {
        let Sizes { p, n, .. } = self.sizes;
        let state = Dense { data: state, stride: n };
        workspace.gemm.pack_right(&state, Layout::Transposed, [n, p], &mut workspace.right)?;
        workspace.gemm.multiply(
            &workspace.left,
            &workspace.right,
            workspace.tile,
            Store::Overwrite,
        );
        Ok(())
    }

    /// A tensor `[b, l, step]` in these chunks of each sequence.
    pub(super) fn split<'x, X>(
        &self,
        x: &'x mut [X],
        step: usize,
        chunks: &Range<usize>,
    ) -> Vec<(Chunk, &'x mut [X])> {
        let (len, l) = (self.sizes.chunk_steps(), self.sizes.l);
        let elements = chunks.start * len * step..(chunks.end * len).min(l) * step;
        x.chunks_mut(l * step)
            .enumerate()
            .flat_map(|(sequence, x)| {
                let spans = x[elements.clone()].chunks_mut(len * step).enumerate();
                spans.map(move |(i, span)| (self.chunk(sequence, chunks.start + i), span))
            })
            .collect()
    }
}

/// `k` or `q` of some chunks; packed, if several heads share a group.
pub(super) struct PackedGroups<'a, T: Float> {
    inputs: &'a Inputs<'a, T>,
    k: &'a [T],
    chunks: Range<usize>,
    /// `[b, chunks, g]` panels, or none.
    panels: Vec<Panels<T::Acc>>,
}

/// The products of a task that enter its states.
pub(super) struct StateProduct<'a, T: Float> {
    groups: &'a PackedGroups<'a, T>,
    gemm: LocalGemm<T::Acc>,
    left: Panels<T::Acc>,
    right: Panels<T::Acc>,
}

impl<'a, T: Float> StateProduct<'a, T> {
    pub(super) fn new(groups: &'a PackedGroups<'a, T>) -> Self {
        let (left, right) = (Panels::default(), Panels::default());
        StateProduct { groups, gemm: LocalGemm::new(), left, right }
    }

    /// `state += rowsᵀ·k`, with the rows of a head, `[rows, p]`, and `k` of its group, `[rows, n]`.
    pub(super) fn add(
        &mut self,
        rows: &[T::Acc],
        chunk: &Chunk,
        group: usize,
        state: &mut [T::Acc],
    ) -> Result<()> {
        let PackedGroups { inputs, k, chunks, panels } = self.groups;
        let Sizes { p, n, g, .. } = inputs.sizes;
        let rows = Dense { data: rows, stride: p };
        self.gemm.pack_left(&rows, Layout::Transposed, [p, chunk.rows], &mut self.left)?;
        let at = (chunk.sequence * chunks.len() + chunk.index - chunks.start) * g + group;
        let right = match panels.get(at) {
            Some(shared) => shared,
            None => {
                let k = inputs.group(k, chunk, group);
                self.gemm.pack_right(&k, Layout::RowMajor, [chunk.rows, n], &mut self.right)?;
                &self.right
            }
        };
        self.gemm.multiply(&self.left, right, state, Store::Add);
        Ok(())
    }
}

pub(super) fn product(m: usize, n: usize, k: usize, left: Layout, right: Layout) -> Product {
    Product { entries: 1, m, n, k, left, right }
}

/// The decays of a head in a chunk, by step.
pub(super) struct Decays<A> {
    /// The logarithm of the decay of each step: −∞ where a sequence starts.
    a: Vec<A>,
    /// From before the chunk to after each step.
    pub(super) before: Vec<A>,
    /// From after each step to after the chunk.
    pub(super) after: Vec<A>,
    /// Of the whole chunk.
    pub(super) all: A,
    pub(super) scale: Vec<A>,
    /// `own_scale`, or else `scale`.
    pub(super) own: Vec<A>,
}

impl<A: Real> Decays<A> {
    pub(super) fn new<T: Float<Acc = A>>(
        inputs: &Inputs<T>,
        chunk: &Chunk,
        head: usize,
    ) -> Decays<A> {
        let Sizes { l, h, .. } = inputs.sizes;
        let first = chunk.sequence * l;
        let steps = || chunk.steps.clone().map(|t| first + t);
        let starts = |t: usize| inputs.seq_start.is_some_and(|seq_start| seq_start[t] != 0);
        let a: Vec<A> = steps()
            .map(|t| if starts(t) { A::NEG_INFINITY } else { inputs.a[t * h + head] })
            .collect();
        let factors = |given: Option<&[A]>| -> Vec<A> {
            steps().map(|t| given.map_or(A::ONE, |given| given[t * h + head])).collect()
        };
        let (scale, own) = (factors(inputs.scale), factors(inputs.own_scale.or(inputs.scale)));
        let mut sum = A::ZERO;
        let mut before: Vec<A> = a
            .iter()
            .map(|a| {
                sum += *a;
                sum
            })
            .collect();
        let mut after = vec![A::ZERO; a.len()];
        let mut sum = A::ZERO;
        for (after, a) in after.iter_mut().zip(&a).rev() {
            *after = sum;
            sum += *a;
        }
        let mut all = [sum];
        exp_all(&mut before);
        exp_all(&mut after);
        exp_all(&mut all);
        Decays { a, before, after, all: all[0], scale, own }
    }

    /// From the inputs of each step to after the chunk.
    pub(super) fn entering(&self) -> Vec<A> {
        self.after.iter().zip(&self.scale).map(|(after, scale)| *after * *scale).collect()
    }

    /// `lambda[t, j]`, the decay from after step `j` to after step `t`, for `j < t`. Each exponent is
    /// the sum of its own steps: a difference of long sums would lose digits.
    pub(super) fn fill_lambda(&self, lambda: &mut [A]) {
        lambda_rows(&self.a, lambda);
    }
}

/// The temporary values of a task.
pub(super) struct Workspace<'a, A> {
    pub(super) gemm: LocalGemm<A>,
    /// `q` or, backward, `k` of a group, `[rows, n]`
    pub(super) left: Panels<A>,
    pub(super) right: Panels<A>,
    /// `[rows, rows]`
    pub(super) scores: &'a mut [A],
    /// `[rows, rows]`
    pub(super) masked: &'a mut [A],
    /// `[steps, steps]`
    pub(super) lambda: &'a mut [A],
    /// `[rows, p]`
    pub(super) tile: &'a mut [A],
    /// `x` of a head, `[rows, p]`
    pub(super) x: &'a mut [A],
}

impl<'a, A: Real> Workspace<'a, A> {
    fn lens(sizes: Sizes, chunk: &Chunk) -> [usize; 5] {
        let (rows, steps) = (chunk.rows, chunk.steps.len());
        [rows * rows, rows * rows, steps * steps, rows * sizes.p, rows * sizes.p]
    }

    /// Memory for it.
    pub(super) fn memory(sizes: Sizes, chunk: &Chunk) -> Result<CpuBuffer> {
        let len: usize = Self::lens(sizes, chunk).iter().sum();
        CpuBuffer::scratch(OP, len * size_of::<A>())
    }

    pub(super) fn new(sizes: Sizes, chunk: &Chunk, memory: &'a mut CpuBuffer) -> Workspace<'a, A> {
        let [scores, masked, lambda, tile, x] = split_into(memory, Self::lens(sizes, chunk));
        let (left, right) = (Panels::default(), Panels::default());
        Workspace { gemm: LocalGemm::new(), left, right, scores, masked, lambda, tile, x }
    }
}

/// Slices of these lengths, one after the other.
pub(super) fn split_into<A: Real, const N: usize>(
    memory: &mut CpuBuffer,
    lens: [usize; N],
) -> [&mut [A]; N] {
    let mut rest = memory.as_mut_slice::<A>();
    lens.map(|len| rest.split_off_mut(..len).expect("memory of these lengths"))
}

/// The scores of a chunk, and their factors.
pub(super) struct Masks<'a, A> {
    /// `q·kᵀ`, `[rows, rows]`
    pub(super) scores: &'a [A],
    /// `[steps, steps]`
    pub(super) lambda: &'a [A],
    /// By the step of `k`.
    pub(super) scale: &'a [A],
    /// In place of `scale`, where `q` and `k` are of the same step.
    pub(super) own: &'a [A],
    pub(super) r: usize,
}

impl<A: Real> Masks<'_, A> {
    /// `factors[j] = lambda[t, j / r]·scale[j / r]`, of the rows up to those of step `t`
    #[inline(always)]
    pub(super) fn factors(&self, t: usize, factors: &mut [A]) {
        let (steps, r) = (self.scale.len(), self.r);
        let lambda = &self.lambda[t * steps..][..t];
        if r == 1 {
            for ((factor, lambda), scale) in factors.iter_mut().zip(lambda).zip(self.scale) {
                *factor = *lambda * *scale;
            }
        } else {
            let by_step = factors.chunks_exact_mut(r).zip(lambda).zip(self.scale);
            by_step.for_each(|((factors, lambda), scale)| factors.fill(*lambda * *scale));
        }
        factors[t * r..].fill(self.own[t]);
    }
}

vectorized! {
    fn exp_all<I: Isa, A: Real>(x: &mut [A]) {
        for x in x {
            *x = x.exp::<I>();
        }
    }

    /// `saved = x` and `x = factor·x`
    pub(super) fn save_and_scale<I: Isa, A: Real>(x: &mut [A], factor: A, saved: &mut [A]) {
        for (x, saved) in x.iter_mut().zip(saved) {
            *saved = *x;
            *x *= factor;
        }
    }

    /// Each row of `x`, `[rows, width]`, times the factor of its step.
    pub(super) fn scale_rows<I: Isa, A: Real>(x: &mut [A], width: usize, factors: &[A], r: usize) {
        for (x, factor) in x.chunks_exact_mut(width * r).zip(factors) {
            for x in x {
                *x *= *factor;
            }
        }
    }

    /// See [`Decays::fill_lambda`].
    fn lambda_rows<I: Isa, A: Real>(a: &[A], lambda: &mut [A]) {
        let mut sums = [A::NEG_INFINITY; super::CHUNK];
        let sums = &mut sums[..a.len()];
        for (t, row) in lambda.chunks_exact_mut(a.len()).enumerate() {
            for sum in sums[..t].iter_mut() {
                *sum += a[t];
            }
            sums[t] = A::ZERO;
            for (decay, sum) in row[..t].iter_mut().zip(&*sums) {
                *decay = sum.exp::<I>();
            }
        }
    }

    /// `masked[i, j] = scores[i, j]·factors[j]`, with the factors of step `i / r`; 0 for later steps.
    pub(super) fn mask<I: Isa, A: Real>(masks: &Masks<A>, masked: &mut [A]) {
        let (steps, r) = (masks.scale.len(), masks.r);
        let rows = steps * r;
        let mut factors = [A::ZERO; super::CHUNK];
        for t in 0..steps {
            let factors = &mut factors[..(t + 1) * r];
            masks.factors(t, factors);
            let range = t * r * rows..(t + 1) * r * rows;
            let scores = masks.scores[range.clone()].chunks_exact(rows);
            for (masked, scores) in masked[range].chunks_exact_mut(rows).zip(scores) {
                let (masked, later) = masked.split_at_mut(factors.len());
                for ((masked, score), factor) in masked.iter_mut().zip(scores).zip(&*factors) {
                    *masked = *score * *factor;
                }
                later.fill(A::ZERO);
            }
        }
    }
}

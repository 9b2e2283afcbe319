//! Attention on the CPU.
//!
//! A task is a span of rows of a key head, which it takes in blocks, with keys in blocks.

use std::ops::Range;

use super::{CausalAttention, OP, Sizes};
use crate::cpu::gemm::{Dense, LocalGemm, Panels, Store, threads_for};
use crate::cpu::isa::vectorized;
use crate::cpu::reduce::{larger, max, sum};
use crate::cpu::threads::{for_tasks, try_for_tasks};
use crate::cpu::{CpuBuffer, CpuView};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::kernel::CpuIo;
use crate::ops::softmax::exp_of_difference;
use crate::product::Layout;

/// Rows and keys of a block: a multiple of the sides of all tiles.
pub(super) const BLOCK: usize = 96;
/// Tasks that there should be at least.
const TASKS: usize = 16;
/// Rows below which products are computed one by one.
const FEW: usize = 8;

pub(super) fn forward(op: &CausalAttention, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let attention = Inputs::<T>::new(op, inputs, inputs.get(3));
        let [o, saved @ ..] = outputs else { unreachable!("a result") };
        let rows = attention.sizes.b * attention.sizes.hq * attention.sizes.l;
        let mut scratch = CpuBuffer::scratch(OP, rows * size_of::<<T as Float>::Acc>())?;
        let log_sums = match saved.first_mut() {
            Some(log_sums) => log_sums.as_mut_slice(),
            None => scratch.as_mut_slice(),
        };
        attention.forward(o.as_mut_slice(), log_sums)
    })
}

pub(super) struct Inputs<'a, T: Float> {
    pub(super) sizes: Sizes,
    pub(super) scale: T::Acc,
    q: &'a [T],
    pub(super) k: &'a [T],
    pub(super) v: &'a [T],
    /// The first key that the step of a key sees, `[b, s]`; empty if it is always the first.
    first: Vec<usize>,
}

/// A span of rows of a key head.
#[derive(Clone)]
pub(super) struct Span {
    pub(super) sequence: usize,
    pub(super) head: usize,
    pub(super) rows: Range<usize>,
}

impl<'a, T: Float> Inputs<'a, T> {
    pub(super) fn new(
        op: &CausalAttention,
        inputs: &[CpuView<'a>],
        seq_start: Option<&CpuView<'a>>,
    ) -> Self {
        let sizes = op.sizes(inputs[0].spec, inputs[1].spec);
        let starts = seq_start.map_or(&[][..], |starts| starts.as_slice::<u32>());
        let mut first = Vec::with_capacity(starts.len());
        for starts in starts.chunks(sizes.s.max(1)) {
            let mut here = 0;
            first.extend(starts.iter().enumerate().map(|(j, start)| {
                here = if *start != 0 { j } else { here };
                here
            }));
        }
        Inputs {
            sizes,
            scale: T::Acc::of(op.scale(sizes.d)),
            q: inputs[0].as_slice(),
            k: inputs[1].as_slice(),
            v: inputs[2].as_slice(),
            first,
        }
    }

    /// The keys that a row sees.
    pub(super) fn visible(&self, span: &Span, row: usize) -> Range<usize> {
        let key = self.sizes.key_of(row);
        let first = self.first.get(span.sequence * self.sizes.s + key);
        first.copied().unwrap_or(0)..key + 1
    }

    /// The spans of all key heads, and the rows of each but the last of a head. They follow from the
    /// sizes.
    pub(super) fn spans(&self) -> (Vec<Span>, usize) {
        let Sizes { b, hk, .. } = self.sizes;
        let rows = self.sizes.rows();
        let spans = TASKS.div_ceil((b * hk).max(1)).min(rows.div_ceil(BLOCK)).max(1);
        let len = rows.div_ceil(spans).next_multiple_of(BLOCK).max(BLOCK);
        let heads = (0..b * hk).map(|i| (i / hk, i % hk));
        let spans = heads.flat_map(|(sequence, head)| {
            (0..rows).step_by(len).map(move |start| {
                let rows = start..(start + len).min(rows);
                Span { sequence, head, rows }
            })
        });
        (spans.collect(), len)
    }

    /// Keys or values of a key head, from a key on.
    pub(super) fn keys<'x>(&self, k: &'x [T], span: &Span, key: usize) -> Dense<'x, T> {
        let Sizes { s, hk, d, .. } = self.sizes;
        let first = ((span.sequence * s + key) * hk + span.head) * d;
        Dense { data: &k[first..], stride: hk * d }
    }

    /// Rows of a key head, `[rows, d]`, of a tensor of the shape of `q`.
    pub(super) fn gather(&self, q: &[T], span: &Span, rows: &Range<usize>, to: &mut Vec<T::Acc>) {
        let d = self.sizes.d;
        to.resize(rows.len() * d, T::Acc::ZERO);
        for (row, to) in rows.clone().zip(to.chunks_mut(d)) {
            T::widen(&q[self.sizes.query(span.sequence, span.head, row)..][..d], to);
        }
    }

    /// [`gather`](Self::gather) of `q`, times the scale.
    pub(super) fn scaled_queries(&self, span: &Span, rows: &Range<usize>, to: &mut Vec<T::Acc>) {
        self.gather(self.q, span, rows, to);
        to.iter_mut().for_each(|q| *q *= self.scale);
    }

    fn forward(&self, o: &mut [T], log_sums: &mut [T::Acc]) -> Result<()> {
        if o.is_empty() {
            return Ok(());
        }
        let d = self.sizes.d;
        let (spans, len) = self.spans();
        // [b, hk, rows, d]
        let mut out = CpuBuffer::scratch(OP, o.len() * size_of::<T::Acc>())?;
        let heads = out.as_mut_slice::<T::Acc>().chunks_mut(self.sizes.rows() * d);
        let outs = heads.flat_map(|head| head.chunks_mut(len * d));
        let log_sums = log_sums.chunks_mut(self.sizes.rows()).flat_map(|head| head.chunks_mut(len));
        let tasks: Vec<_> = spans.into_iter().zip(outs.zip(log_sums)).collect();
        try_for_tasks(tasks, threads_for(self.sizes.work()), |_, (span, (out, log_sums))| {
            if self.sizes.rows() < FEW {
                self.few_rows(&span, out, log_sums);
                return Ok(());
            }
            self.span(&span, out, log_sums)
        })?;
        self.scatter(out.as_slice(), o);
        Ok(())
    }

    /// From `[b, hk, rows, d]` to a tensor of the shape of `q`.
    pub(super) fn scatter(&self, from: &[T::Acc], to: &mut [T]) {
        let Sizes { l, hq, d, .. } = self.sizes;
        let (group, rows) = (self.sizes.group(), self.sizes.rows());
        let work = to.len();
        let tasks: Vec<_> = to.chunks_mut(hq * d).enumerate().collect();
        for_tasks(tasks, work, |(i, step)| {
            let (sequence, t) = (i / l, i % l);
            for (head, to) in step.chunks_mut(d).enumerate() {
                let first = (sequence * hq / group + head / group) * rows;
                let row = first + t * group + head % group;
                T::narrow(&from[row * d..][..d], to);
            }
        });
    }

    /// The output of a span, `[rows, d]`, and its `log_sums`, `[rows]`.
    fn span(&self, span: &Span, out: &mut [T::Acc], log_sums: &mut [T::Acc]) -> Result<()> {
        let d = self.sizes.d;
        let gemm = LocalGemm::new();
        let keys = self.visible(span, span.rows.end - 1).end;
        let mut blocks = Vec::new();
        for (start, len) in blocks_of(0..keys) {
            let (k, v) = (self.keys(self.k, span, start), self.keys(self.v, span, start));
            let [mut k_panels, mut v_panels] = [Panels::default(), Panels::default()];
            gemm.pack_left(&k, Layout::RowMajor, [len, d], &mut k_panels)?;
            gemm.pack_right(&v, Layout::RowMajor, [len, d], &mut v_panels)?;
            blocks.push((start..start + len, k_panels, v_panels));
        }
        let (mut q, mut q_panels, mut weight_panels) =
            (Vec::new(), Panels::default(), Panels::default());
        // The products of keys and rows, [keys, rows]; then the weights.
        let mut weights = [T::Acc::ZERO; BLOCK * BLOCK];
        for (start, len) in blocks_of(span.rows.clone()) {
            let rows = start..start + len;
            let at = start - span.rows.start;
            let (out, log_sums) = (&mut out[at * d..][..len * d], &mut log_sums[at..][..len]);
            self.scaled_queries(span, &rows, &mut q);
            let queries = Dense { data: &q, stride: d };
            gemm.pack_right(&queries, Layout::Transposed, [d, len], &mut q_panels)?;
            let visible: Vec<_> = rows.clone().map(|row| self.visible(span, row)).collect();
            let mut softmax = RunningSoftmax::new(len);
            out.fill(T::Acc::ZERO);
            let (first, end) = (visible[0].start, visible[len - 1].end);
            for (keys, k, v) in
                blocks.iter().filter(|(keys, ..)| keys.end > first && keys.start < end)
            {
                let weights = &mut weights[..keys.len() * len];
                gemm.multiply(k, &q_panels, weights, Store::Overwrite);
                if keys.end > visible[0].end || keys.start < visible[len - 1].start {
                    mask(weights, keys, &visible);
                }
                softmax.add(weights);
                for (out, factor) in out.chunks_mut(d).zip(&softmax.factor) {
                    scale_by(out, *factor);
                }
                let by_key = Dense { data: &*weights, stride: len };
                let sizes = [len, keys.len()];
                gemm.pack_left(&by_key, Layout::Transposed, sizes, &mut weight_panels)?;
                gemm.multiply(&weight_panels, v, out, Store::Add);
            }
            for (i, out) in out.chunks_mut(d).enumerate() {
                scale_by(out, T::Acc::ONE / softmax.sum[i]);
                log_sums[i] = softmax.log_sum(i);
            }
        }
        Ok(())
    }

    /// The same without packing: as fast as keys and values can be read.
    fn few_rows(&self, span: &Span, out: &mut [T::Acc], log_sums: &mut [T::Acc]) {
        let d = self.sizes.d;
        let (mut q, mut wide) = (Vec::new(), vec![T::Acc::ZERO; BLOCK * d]);
        self.scaled_queries(span, &span.rows, &mut q);
        let visible: Vec<_> = span.rows.clone().map(|row| self.visible(span, row)).collect();
        let keys = visible[0].start..visible[visible.len() - 1].end;
        // [rows, keys]
        let mut weights = vec![T::Acc::ZERO; q.len() / d * keys.len()];
        for (start, len) in blocks_of(keys.clone()) {
            let k = self.widened_keys(self.k, span, start..start + len, &mut wide);
            for (q, weights) in q.chunks(d).zip(weights.chunks_mut(keys.len())) {
                key_products(q, k, &mut weights[start - keys.start..][..len]);
            }
        }
        let rows = weights.chunks_mut(keys.len()).zip(&visible);
        for ((weights, visible), log_sum) in rows.zip(log_sums) {
            let (first, end) = (visible.start - keys.start, visible.end - keys.start);
            weights[..first].fill(T::Acc::ZERO);
            weights[end..].fill(T::Acc::ZERO);
            let weights = &mut weights[first..end];
            let top = max(weights).expect("a row sees its own key");
            exp_of_difference(weights, top);
            let total = sum(weights);
            scale_by(weights, T::Acc::ONE / total);
            *log_sum = top + ln(total);
        }
        out.fill(T::Acc::ZERO);
        for (start, len) in blocks_of(keys.clone()) {
            let v = self.widened_keys(self.v, span, start..start + len, &mut wide);
            for (out, weights) in out.chunks_mut(d).zip(weights.chunks(keys.len())) {
                add_values(&weights[start - keys.start..][..len], v, out);
            }
        }
    }

    /// Keys or values, in place if they are stored in the wider type, and the distance of their
    /// rows.
    fn widened_keys<'x>(
        &self,
        k: &'x [T],
        span: &Span,
        keys: Range<usize>,
        wide: &'x mut [T::Acc],
    ) -> (&'x [T::Acc], usize) {
        let (k, d) = (self.keys(k, span, keys.start), self.sizes.d);
        if let Some(stored) = T::as_acc(k.data) {
            return (stored, k.stride);
        }
        for (j, wide) in wide.chunks_mut(d).take(keys.len()).enumerate() {
            T::widen(&k.data[j * k.stride..][..d], wide);
        }
        (wide, d)
    }
}

/// The start and the length of each block of a range.
pub(super) fn blocks_of(range: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    range.clone().step_by(BLOCK).map(move |start| (start, BLOCK.min(range.end - start)))
}

/// Set products, `[keys, rows]`, to −∞ where a row does not see a key. Both bounds of what a row
/// sees grow with the row.
fn mask<A: Real>(products: &mut [A], keys: &Range<usize>, visible: &[Range<usize>]) {
    for (key, products) in keys.clone().zip(products.chunks_mut(visible.len())) {
        let from = visible.partition_point(|visible| visible.end <= key);
        let to = visible.partition_point(|visible| visible.start <= key);
        products[..from].fill(A::NEG_INFINITY);
        products[to.max(from)..].fill(A::NEG_INFINITY);
    }
}

/// The softmax of rows whose products come in blocks of keys.
struct RunningSoftmax<A> {
    /// The largest product of each row.
    max: Vec<A>,
    /// The sum of exp(product − max).
    sum: Vec<A>,
    /// What earlier blocks are multiplied by, after each block.
    factor: Vec<A>,
}

impl<A: Real> RunningSoftmax<A> {
    fn new(rows: usize) -> RunningSoftmax<A> {
        let zeros = || vec![A::ZERO; rows];
        // Finite: the difference to −∞ must not be NaN.
        RunningSoftmax { max: vec![A::LOWEST; rows], sum: zeros(), factor: zeros() }
    }

    /// From the products of further keys, `[keys, rows]`, to exp(product − max).
    fn add(&mut self, products: &mut [A]) {
        add_products(products, &mut self.max, &mut self.sum, &mut self.factor);
    }

    fn log_sum(&self, row: usize) -> A {
        self.max[row] + ln(self.sum[row])
    }
}

vectorized! {
    fn add_products<I: Isa, A: Real>(
        products: &mut [A],
        max: &mut [A],
        sum: &mut [A],
        factor: &mut [A],
    ) {
        let n = max.len();
        let (sum, factor) = (&mut sum[..n], &mut factor[..n]);
        factor.copy_from_slice(max);
        for products in products.chunks_exact(n) {
            for (max, product) in max.iter_mut().zip(products) {
                *max = larger(*max, *product);
            }
        }
        for i in 0..n {
            factor[i] = (factor[i] - max[i]).exp::<I>();
            sum[i] *= factor[i];
        }
        for products in products.chunks_exact_mut(n) {
            for i in 0..n {
                let weight = (products[i] - max[i]).exp::<I>();
                products[i] = weight;
                sum[i] += weight;
            }
        }
    }

    /// The products of a query with keys, whose rows are `stride` apart.
    fn key_products<I: Isa, A: Real>(q: &[A], keys: (&[A], usize), products: &mut [A]) {
        const LANES: usize = 32;
        let (k, stride) = keys;
        let (q, q_rest) = q.as_chunks::<LANES>();
        let d = q.len() * LANES + q_rest.len();
        for (product, k) in products.iter_mut().zip(k.chunks(stride)) {
            let (k, k_rest) = k[..d].as_chunks::<LANES>();
            let mut sums = [A::ZERO; LANES];
            for (q, k) in q.iter().zip(k) {
                for i in 0..LANES {
                    sums[i] = q[i].fma::<I>(k[i], sums[i]);
                }
            }
            let mut half = LANES / 2;
            while half > 0 {
                for i in 0..half {
                    sums[i] += sums[i + half];
                }
                half /= 2;
            }
            for (q, k) in q_rest.iter().zip(k_rest) {
                sums[0] = q.fma::<I>(*k, sums[0]);
            }
            *product = sums[0];
        }
    }

    /// `out += Σ_j weights_j·v_j`
    fn add_values<I: Isa, A: Real>(weights: &[A], values: (&[A], usize), out: &mut [A]) {
        let (v, stride) = values;
        for (weight, v) in weights.iter().zip(v.chunks(stride)) {
            for (out, v) in out.iter_mut().zip(v) {
                *out = weight.fma::<I>(*v, *out);
            }
        }
    }

    fn ln<I: Isa, A: Real>(x: A) -> A {
        x.ln::<I>()
    }

    /// `x = factor·x`
    pub(super) fn scale_by<I: Isa, A: Real>(x: &mut [A], factor: A) {
        for x in x {
            *x *= factor;
        }
    }
}

//! The gradients of attention on the CPU.

use std::ops::Range;

use super::cpu::{BLOCK, Inputs, Span, blocks_of, scale_by};
use super::{CausalAttention, OP, Sizes};
use crate::cpu::CpuBuffer;
use crate::cpu::gemm::{Dense, LocalGemm, Panels, Store, threads_for};
use crate::cpu::isa::vectorized;
use crate::cpu::map::add;
use crate::cpu::reduce::dot;
use crate::cpu::threads::{for_tasks, try_for_tasks};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::kernel::CpuIo;
use crate::product::Layout;

/// With `weight = exp(scale·q·kᵀ − log_sums)`, `η = do·o` of each row and
/// `dproduct = weight ⊙ (do·vᵀ − η)`:
/// `dq = scale·dproduct·k`, `dk = scale·dproductᵀ·q` and `dv = weightᵀ·do`.
pub(super) fn cpu(op: &CausalAttention, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let attention = Backward {
            inputs: Inputs::<T>::new(op, inputs, inputs.get(6)),
            o: inputs[3].as_slice(),
            log_sums: inputs[4].as_slice(),
            dout: inputs[5].as_slice(),
        };
        let [dq, dk, dv] = outputs else { unreachable!("three gradients") };
        attention.run(dq.as_mut_slice(), dk.as_mut_slice(), dv.as_mut_slice())
    })
}

struct Backward<'a, T: Float> {
    inputs: Inputs<'a, T>,
    o: &'a [T],
    /// `[b, hk, rows]`
    log_sums: &'a [T::Acc],
    dout: &'a [T],
}

/// A block of keys, packed for each product that reads it.
struct KeyBlock<A> {
    keys: Range<usize>,
    /// kᵀ, `[d, keys]`
    k_transposed: Panels<A>,
    /// vᵀ, `[d, keys]`
    v_transposed: Panels<A>,
    /// `[keys, d]`
    k: Panels<A>,
}

impl<T: Float> Backward<'_, T> {
    fn run(&self, dq: &mut [T], dk: &mut [T], dv: &mut [T]) -> Result<()> {
        let Sizes { s, d, .. } = self.inputs.sizes;
        let rows = self.inputs.sizes.rows();
        let (spans, len) = self.inputs.spans();
        // [b, hk, rows, d]; of each span, [s, d] of dk and of dv.
        let mut dq_rows = CpuBuffer::scratch(OP, dq.len() * size_of::<T::Acc>())?;
        let mut terms = CpuBuffer::scratch(OP, 2 * spans.len() * s * d * size_of::<T::Acc>())?;
        let heads = dq_rows.as_mut_slice::<T::Acc>().chunks_mut((rows * d).max(1));
        let dqs = heads.flat_map(|head| head.chunks_mut(len * d));
        let per_head = rows.div_ceil(len);
        let terms_of_spans = terms.as_mut_slice::<T::Acc>().chunks_mut((2 * s * d).max(1));
        let tasks: Vec<_> = spans.into_iter().zip(dqs.zip(terms_of_spans)).collect();
        let threads = threads_for(self.inputs.sizes.work());
        try_for_tasks(tasks, threads, |_, (span, (dq, terms))| {
            let (dk, dv) = terms.split_at_mut(s * d);
            dk.fill(T::Acc::ZERO);
            dv.fill(T::Acc::ZERO);
            self.span(&span, dq, dk, dv)
        })?;
        self.inputs.scatter(dq_rows.as_slice(), dq);
        let terms = terms.as_slice::<T::Acc>();
        for (i, to) in [dk, dv].into_iter().enumerate() {
            self.sum_terms(terms, i, per_head, to);
        }
        Ok(())
    }

    /// Sum the terms of `dk` (0) or `dv` (1) over the spans of each key head.
    fn sum_terms(&self, terms: &[T::Acc], which: usize, spans: usize, to: &mut [T]) {
        let Sizes { s, hk, d, .. } = self.inputs.sizes;
        let work = to.len() * spans;
        let tasks: Vec<_> = to.chunks_mut(hk * d).enumerate().collect();
        for_tasks(tasks, work, |(i, to)| {
            let (sequence, key) = (i / s, i % s);
            let mut sum = vec![T::Acc::ZERO; d];
            for (head, to) in to.chunks_mut(d).enumerate() {
                sum.fill(T::Acc::ZERO);
                for span in 0..spans {
                    let term = ((sequence * hk + head) * spans + span) * 2 + which;
                    add(&mut sum, &terms[(term * s + key) * d..][..d]);
                }
                T::narrow(&sum, to);
            }
        });
    }

    /// `dq` of a span, `[rows, d]`, and what it adds to `dk` and `dv`, `[s, d]`.
    fn span(
        &self,
        span: &Span,
        dq: &mut [T::Acc],
        dk: &mut [T::Acc],
        dv: &mut [T::Acc],
    ) -> Result<()> {
        let (inputs, d) = (&self.inputs, self.inputs.sizes.d);
        let gemm = LocalGemm::new();
        let keys = inputs.visible(span, span.rows.end - 1).end;
        let blocks = blocks_of(0..keys)
            .map(|(start, len)| self.pack_keys(&gemm, span, start..start + len))
            .collect::<Result<Vec<_>>>()?;
        let mut block = RowBlock::new();
        let [mut weights, mut dproducts] = [(); 2].map(|()| vec![T::Acc::ZERO; BLOCK * BLOCK]);
        let mut panels = Panels::default();
        for (start, len) in blocks_of(span.rows.clone()) {
            let dq = &mut dq[(start - span.rows.start) * d..][..len * d];
            dq.fill(T::Acc::ZERO);
            self.pack_rows(&gemm, span, start..start + len, &mut block)?;
            let (first, end) = (block.visible[0].start, block.visible[len - 1].end);
            for keys in
                blocks.iter().filter(|block| block.keys.end > first && block.keys.start < end)
            {
                let n = keys.keys.len();
                let (weights, dproducts) = (&mut weights[..len * n], &mut dproducts[..len * n]);
                gemm.multiply(&block.q, &keys.k_transposed, weights, Store::Overwrite);
                gemm.multiply(&block.dout, &keys.v_transposed, dproducts, Store::Overwrite);
                block.weigh(&keys.keys, weights, dproducts);
                let of_keys = keys.keys.start * d..keys.keys.end * d;
                for (weights, right, to) in
                    [(&*weights, &block.dout_rows, &mut *dv), (dproducts, &block.q_rows, &mut *dk)]
                {
                    let left = Dense { data: weights, stride: n };
                    gemm.pack_left(&left, Layout::Transposed, [n, len], &mut panels)?;
                    gemm.multiply(&panels, right, &mut to[of_keys.clone()], Store::Add);
                }
                let left = Dense { data: &*dproducts, stride: n };
                gemm.pack_left(&left, Layout::RowMajor, [len, n], &mut panels)?;
                gemm.multiply(&panels, &keys.k, dq, Store::Add);
            }
            scale_by(dq, inputs.scale);
        }
        Ok(())
    }

    fn pack_keys(
        &self,
        gemm: &LocalGemm<T::Acc>,
        span: &Span,
        keys: Range<usize>,
    ) -> Result<KeyBlock<T::Acc>> {
        let (inputs, d, n) = (&self.inputs, self.inputs.sizes.d, keys.len());
        let (k, v) =
            (inputs.keys(inputs.k, span, keys.start), inputs.keys(inputs.v, span, keys.start));
        let [mut k_transposed, mut v_transposed, mut k_panels] =
            [(); 3].map(|()| Panels::default());
        gemm.pack_right(&k, Layout::Transposed, [d, n], &mut k_transposed)?;
        gemm.pack_right(&v, Layout::Transposed, [d, n], &mut v_transposed)?;
        gemm.pack_right(&k, Layout::RowMajor, [n, d], &mut k_panels)?;
        Ok(KeyBlock { keys, k_transposed, v_transposed, k: k_panels })
    }

    fn pack_rows(
        &self,
        gemm: &LocalGemm<T::Acc>,
        span: &Span,
        rows: Range<usize>,
        block: &mut RowBlock<T::Acc>,
    ) -> Result<()> {
        let (inputs, d, n) = (&self.inputs, self.inputs.sizes.d, rows.len());
        let head = span.sequence * inputs.sizes.hk + span.head;
        let log_sums = &self.log_sums[head * inputs.sizes.rows()..][rows.clone()];
        block.log_sums.clear();
        block.log_sums.extend_from_slice(log_sums);
        block.visible = rows.clone().map(|row| inputs.visible(span, row)).collect();
        let [mut of_row, mut o] = [Vec::new(), Vec::new()];
        inputs.gather(self.dout, span, &rows, &mut of_row);
        inputs.gather(self.o, span, &rows, &mut o);
        block.eta = of_row.chunks(d).zip(o.chunks(d)).map(|(dout, o)| dot(dout, o)).collect();
        let dout = Dense { data: &of_row, stride: d };
        gemm.pack_left(&dout, Layout::RowMajor, [n, d], &mut block.dout)?;
        gemm.pack_right(&dout, Layout::RowMajor, [n, d], &mut block.dout_rows)?;
        inputs.scaled_queries(span, &rows, &mut of_row);
        let q = Dense { data: &of_row, stride: d };
        gemm.pack_left(&q, Layout::RowMajor, [n, d], &mut block.q)?;
        gemm.pack_right(&q, Layout::RowMajor, [n, d], &mut block.q_rows)
    }
}

/// A block of rows, packed for each product that reads it; `q` is scaled.
struct RowBlock<A> {
    visible: Vec<Range<usize>>,
    log_sums: Vec<A>,
    eta: Vec<A>,
    /// `[rows, d]`, left of a product.
    q: Panels<A>,
    /// `[rows, d]`, right of a product.
    q_rows: Panels<A>,
    dout: Panels<A>,
    dout_rows: Panels<A>,
}

impl<A: Real> RowBlock<A> {
    fn new() -> RowBlock<A> {
        let [q, q_rows, dout, dout_rows] = [(); 4].map(|()| Panels::default());
        let (visible, log_sums, eta) = (Vec::new(), Vec::new(), Vec::new());
        RowBlock { visible, log_sums, eta, q, q_rows, dout, dout_rows }
    }

    /// From products `q·kᵀ` and `do·vᵀ`, `[rows, keys]`, to weights and `dproduct`.
    fn weigh(&self, keys: &Range<usize>, weights: &mut [A], dproducts: &mut [A]) {
        let rows = weights.chunks_mut(keys.len()).zip(dproducts.chunks_mut(keys.len()));
        for (i, (weights, dproducts)) in rows.enumerate() {
            let visible = &self.visible[i];
            let end = visible.end.clamp(keys.start, keys.end) - keys.start;
            let first = (visible.start.clamp(keys.start, keys.end) - keys.start).min(end);
            for hidden in [0..first, end..keys.len()] {
                weights[hidden.clone()].fill(A::ZERO);
                dproducts[hidden].fill(A::ZERO);
            }
            let (log_sum, eta) = (self.log_sums[i], self.eta[i]);
            weigh_row(&mut weights[first..end], &mut dproducts[first..end], log_sum, eta);
        }
    }
}

vectorized! {
    /// `weight = exp(product − log_sum)`, `dproduct = weight·(dproduct − eta)`
    fn weigh_row<I: Isa, A: Real>(
        products: &mut [A],
        dproducts: &mut [A],
        log_sum: A,
        eta: A,
    ) {
        for (product, dproduct) in products.iter_mut().zip(dproducts) {
            let weight = (*product - log_sum).exp::<I>();
            *product = weight;
            *dproduct = weight * (*dproduct - eta);
        }
    }
}

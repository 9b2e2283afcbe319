//! The gradients of the scan on the CPU.

use super::cpu::{
    Chunk, Decays, Inputs, Masks, StateProduct, Workspace, mask, product, save_and_scale,
    scale_rows, split_into,
};
use super::{ChunkedScan, OP, Optional, Sizes};
use crate::cpu::CpuBuffer;
use crate::cpu::gemm::{Dense, Gemm, Panels, Store, Triangle};
use crate::cpu::isa::vectorized;
use crate::cpu::map::{add, add_scaled};
use crate::cpu::reduce::{dot, sum};
use crate::cpu::threads::try_for_tasks;
use crate::dtype::{Float, Real, with_dtype};
use crate::error::Result;
use crate::kernel::CpuIo;
use crate::product::Layout;

pub(super) fn cpu(op: &ChunkedScan, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let last = inputs.len() - 3;
        let (states, dy, dfinal) = (&inputs[last], &inputs[last + 1], &inputs[last + 2]);
        let scan = Backward {
            inputs: Inputs::<T>::new(op, inputs),
            states: states.as_slice(),
            dy: dy.as_slice(),
        };
        let [dx, da, dk, dq, optional @ ..] = outputs else { unreachable!("four inputs") };
        let mut optional = optional.iter_mut();
        let mut next = |which| op.index(which).and_then(|_| optional.next());
        let (dscale, down) = (next(Optional::Scale), next(Optional::OwnScale));
        let dd = next(Optional::D);
        let mut dinitial = next(Optional::InitialState);

        // The gradient of the states after each chunk; at last that of the initial one.
        let mut dstate = CpuBuffer::from_slice(OP, dfinal.as_slice::<<T as Float>::Acc>())?;
        let mut dstates = CpuBuffer::scratch(OP, states.spec.bytes())?;
        scan.retreat(dstate.as_mut_slice(), dstates.as_mut_slice())?;
        if let Some(dinitial) = &mut dinitial {
            dinitial.data.bytes_mut().copy_from_slice(dstate.bytes());
        }
        scan.gradients(
            dstates.as_slice(),
            Gradients {
                dx: dx.as_mut_slice(),
                da: da.as_mut_slice(),
                dk: dk.as_mut_slice(),
                dq: dq.as_mut_slice(),
                dscale: dscale.map(|dscale| dscale.as_mut_slice()),
                down: down.map(|down| down.as_mut_slice()),
                dd: dd.map(|dd| dd.as_mut_slice()),
            },
        )
    })
}

struct Backward<'a, T: Float> {
    inputs: Inputs<'a, T>,
    /// The states before each chunk, `[b, h, chunks, p, n]`.
    states: &'a [T::Acc],
    dy: &'a [T],
}

/// The gradients of the inputs, or those of a chunk of them.
struct Gradients<'a, T: Float> {
    dx: &'a mut [T],
    da: &'a mut [T::Acc],
    dk: &'a mut [T],
    dq: &'a mut [T],
    dscale: Option<&'a mut [T::Acc]>,
    /// That of `own_scale`.
    down: Option<&'a mut [T::Acc]>,
    dd: Option<&'a mut [T::Acc]>,
}

impl<T: Float> Backward<'_, T> {
    /// From `dstate`, `[b, h, p, n]`, the gradient of the final state, to that of the initial one;
    /// `dstates`, `[b, h, chunks, p, n]`, are those of the states after each chunk.
    fn retreat(&self, dstate: &mut [T::Acc], dstates: &mut [T::Acc]) -> Result<()> {
        let (inputs, sizes) = (&self.inputs, self.inputs.sizes);
        let Sizes { h, p, .. } = sizes;
        if dstates.is_empty() {
            return Ok(());
        }
        let one = sizes.state();
        let packed = inputs.packed(inputs.q, &(0..sizes.chunks()))?;
        let heads = dstate.chunks_mut(one).zip(dstates.chunks_mut(sizes.chunks() * one));
        let tasks: Vec<_> = heads.collect();
        try_for_tasks(tasks, inputs.threads(sizes.chunks()), |i, (dstate, dstates)| {
            let (sequence, head) = (i / h, i % h);
            let mut product = StateProduct::new(&packed);
            let mut rows = inputs.row_buffer()?;
            for (index, after) in dstates.chunks_mut(one).enumerate().rev() {
                let chunk = inputs.chunk(sequence, index);
                let decays = Decays::new(inputs, &chunk, head);
                let rows = &mut rows.as_mut_slice()[..chunk.rows * p];
                inputs.widened_rows(self.dy, &chunk, head, rows);
                scale_rows(rows, p, &decays.before, sizes.r);
                save_and_scale(dstate, decays.all, after);
                product.add(rows, &chunk, inputs.group_of(head), dstate)?;
            }
            Ok(())
        })
    }

    fn gradients(&self, dstates: &[T::Acc], grads: Gradients<T>) -> Result<()> {
        let (inputs, Sizes { h, p, r, g, n, .. }) = (&self.inputs, self.inputs.sizes);
        let Gradients { dx, da, dk, dq, dscale, down, dd } = grads;
        if dx.is_empty() {
            if let Some(dd) = dd {
                dd.fill(T::Acc::ZERO);
            }
            return Ok(());
        }
        let all = 0..inputs.sizes.chunks();
        let mut dd_terms = vec![T::Acc::ZERO; inputs.sizes.b * all.len() * h];
        let mut dscales = dscale.map(|dscale| inputs.split(dscale, h, &all).into_iter());
        let mut downs = down.map(|down| inputs.split(down, h, &all).into_iter());
        let tasks: Vec<(Chunk, Gradients<T>)> = inputs
            .split(dx, r * h * p, &all)
            .into_iter()
            .zip(inputs.split(da, h, &all))
            .zip(inputs.split(dk, r * g * n, &all).into_iter().zip(inputs.split(
                dq,
                r * g * n,
                &all,
            )))
            .zip(dd_terms.chunks_mut(h))
            .map(|((((chunk, dx), (_, da)), ((_, dk), (_, dq))), dd)| {
                let dscale = dscales.as_mut().and_then(Iterator::next).map(|(_, dscale)| dscale);
                let down = downs.as_mut().and_then(Iterator::next).map(|(_, down)| down);
                (chunk, Gradients { dx, da, dk, dq, dscale, down, dd: Some(dd) })
            })
            .collect();
        try_for_tasks(tasks, inputs.threads(all.len()), |_, (chunk, grads)| {
            self.chunk_gradients(&chunk, dstates, grads)
        })?;
        if let Some(dd) = dd {
            dd.fill(T::Acc::ZERO);
            dd_terms.chunks(h).for_each(|terms| add(dd, terms));
        }
        Ok(())
    }

    /// The formulas are those of docs/math.md.
    fn chunk_gradients(
        &self,
        chunk: &Chunk,
        dstates: &[T::Acc],
        mut grads: Gradients<T>,
    ) -> Result<()> {
        let (inputs, sizes) = (&self.inputs, self.inputs.sizes);
        let (Sizes { g, n, .. }, rows) = (sizes, chunk.rows);
        let mut memory = Workspace::<T::Acc>::memory(sizes, chunk)?;
        let mut workspace = Workspace::new(sizes, chunk, &mut memory);
        let (square, wide, row) = (rows * rows, rows * n, rows * sizes.p);
        let lens = [square, wide, wide, square, wide, row, wide];
        let len: usize = lens.iter().sum();
        let mut memory = CpuBuffer::scratch(OP, len * size_of::<T::Acc>())?;
        let [weights, dq, dk, products, term, dy, q] = split_into(&mut memory, lens);
        let panels = Panels::default();
        let mut sums = Sums { weights, dq, dk, products, term, dy, q, panels };
        for group in 0..g {
            inputs.scores(chunk, group, &mut workspace)?;
            let (k, q) =
                (inputs.group(inputs.k, chunk, group), inputs.group(inputs.q, chunk, group));
            for (i, to) in sums.q.chunks_mut(n).enumerate() {
                T::widen(&q.data[i * q.stride..][..n], to);
            }
            workspace.gemm.pack_left(&k, Layout::RowMajor, [rows, n], &mut workspace.left)?;
            sums.weights.fill(T::Acc::ZERO);
            sums.dq.fill(T::Acc::ZERO);
            sums.dk.fill(T::Acc::ZERO);
            for head in inputs.heads(group) {
                self.head_gradients(chunk, head, dstates, (&mut workspace, &mut sums), &mut grads)?;
            }
            let weights = Dense { data: &*sums.weights, stride: rows };
            // dq += weights·k, dk += weightsᵀ·q
            let product_of = |left| product(rows, n, rows, left, Layout::RowMajor);
            let gemm = Gemm { product: product_of(Layout::RowMajor), left: &weights, right: &k };
            workspace.gemm.add(&gemm, sums.dq, Triangle::LowerLeft(sizes.r))?;
            let gemm = Gemm { product: product_of(Layout::Transposed), left: &weights, right: &q };
            workspace.gemm.add(&gemm, sums.dk, Triangle::UpperLeft(sizes.r))?;
            for (to, from) in [(&mut *grads.dq, &*sums.dq), (&mut *grads.dk, &*sums.dk)] {
                for (to, from) in to.chunks_mut(g * n).zip(from.chunks(n)) {
                    T::narrow(from, &mut to[group * n..][..n]);
                }
            }
        }
        Ok(())
    }

    fn head_gradients(
        &self,
        chunk: &Chunk,
        head: usize,
        dstates: &[T::Acc],
        (workspace, sums): (&mut Workspace<T::Acc>, &mut Sums<T::Acc>),
        grads: &mut Gradients<T>,
    ) -> Result<()> {
        let (inputs, sizes) = (&self.inputs, self.inputs.sizes);
        let (Sizes { h, p, n, r, .. }, rows, steps) = (sizes, chunk.rows, chunk.steps.len());
        let at = (chunk.sequence * h + head) * sizes.chunks() + chunk.index;
        let one = sizes.state();
        let (state, dstate) = (&self.states[at * one..][..one], &dstates[at * one..][..one]);
        let decays = Decays::new(inputs, chunk, head);
        let d = inputs.d.map_or(T::Acc::ZERO, |d| d[head]);
        let zeros = |len: usize| vec![T::Acc::ZERO; len];
        let mut through = Through { before: zeros(steps), after: zeros(steps), all: T::Acc::ZERO };
        inputs.widened_rows(inputs.x, chunk, head, workspace.x);
        inputs.widened_rows(self.dy, chunk, head, sums.dy);
        let (x, dy) =
            (Dense { data: &*workspace.x, stride: p }, Dense { data: &*sums.dy, stride: p });

        // What enters the state after the chunk: after_j·dstate·k_j.
        let after = Dense { data: dstate, stride: n };
        workspace.gemm.pack_right(&after, Layout::Transposed, [n, p], &mut workspace.right)?;
        workspace.gemm.multiply(
            &workspace.left,
            &workspace.right,
            workspace.tile,
            Store::Overwrite,
        );
        scale_rows(workspace.tile, p, &decays.after, r);
        for (i, (tile, x)) in workspace.tile.chunks(p).zip(workspace.x.chunks(p)).enumerate() {
            through.after[i / r] += decays.scale[i / r] * dot(x, tile);
        }

        // What enters the outputs of the chunk: maskedᵀ·dy, with masked = scores ⊙ Λ; without those
        // of the same step, if these have a factor of their own.
        workspace.gemm.pack_left(&dy, Layout::RowMajor, [rows, p], &mut sums.panels)?;
        workspace.gemm.pack_right(&x, Layout::Transposed, [p, rows], &mut workspace.right)?;
        workspace.gemm.multiply_triangle(
            &sums.panels,
            &workspace.right,
            sums.products,
            Store::Overwrite,
            Triangle::LowerSums(r),
        );
        decays.fill_lambda(workspace.lambda);
        let (scores, lambda) = (&*workspace.scores, &*workspace.lambda);
        let (ones, own) = (vec![T::Acc::ONE; steps], grads.down.is_some());
        let seen = if own { &zeros(steps) } else { &ones };
        mask(&Masks { scores, lambda, scale: &ones, own: seen, r }, workspace.masked);
        if let Some(to) = &mut grads.down {
            let down = own_products(scores, sums.products, steps);
            to.iter_mut().skip(head).step_by(h).zip(down).for_each(|(to, x)| *to = x);
        }
        let masks = Masks { scores, lambda, scale: &decays.scale, own: &decays.own, r };
        weigh(sums.products, sums.weights, &masks);
        let product_of = product(rows, p, rows, Layout::Transposed, Layout::RowMajor);
        let masked = Dense { data: &*workspace.masked, stride: rows };
        let gemm = Gemm { product: product_of, left: &masked, right: &dy };
        workspace.gemm.add(&gemm, workspace.tile, Triangle::UpperLeft(r))?;

        let (mut dscale, mut dd) = (zeros(steps), T::Acc::ZERO);
        for (i, (tile, x)) in workspace.tile.chunks(p).zip(workspace.x.chunks(p)).enumerate() {
            dscale[i / r] += dot(tile, x);
            dd += dot(&sums.dy[i * p..][..p], x);
        }
        scale_rows(workspace.tile, p, &decays.scale, r);
        add_scaled(workspace.tile, d, sums.dy);
        if own {
            // own_t·Σ_i scores[i, j]·dy_i over the rows i of the step of j.
            for (j, tile) in workspace.tile.chunks_mut(p).enumerate() {
                for i in j / r * r..j / r * r + r {
                    let factor = decays.own[j / r] * workspace.scores[i * rows + j];
                    add_scaled(tile, factor, &sums.dy[i * p..][..p]);
                }
            }
        }
        for (i, tile) in workspace.tile.chunks(p).enumerate() {
            T::narrow(tile, &mut grads.dx[(i * h + head) * p..][..p]);
        }
        if let Some(to) = &mut grads.dscale {
            to.iter_mut().skip(head).step_by(h).zip(&dscale).for_each(|(to, x)| *to = *x);
        }
        if let Some(to) = &mut grads.dd {
            to[head] = dd;
        }

        // dq: before_t·stateᵀ·dy_t, and dk: after_j·scale_j·dstateᵀ·x_j
        let before = Dense { data: state, stride: n };
        workspace.gemm.pack_right(&before, Layout::RowMajor, [p, n], &mut workspace.right)?;
        workspace.gemm.multiply(&sums.panels, &workspace.right, sums.term, Store::Overwrite);
        scale_rows(sums.term, n, &decays.before, r);
        for (i, (term, q)) in sums.term.chunks(n).zip(sums.q.chunks(n)).enumerate() {
            through.before[i / r] += dot(term, q);
        }
        add(sums.dq, sums.term);
        scale_rows(workspace.x, p, &decays.entering(), r);
        let product_of = product(rows, n, p, Layout::RowMajor, Layout::RowMajor);
        let left = Dense { data: &*workspace.x, stride: p };
        let gemm = Gemm { product: product_of, left: &left, right: &after };
        workspace.gemm.add(&gemm, sums.dk, Triangle::None)?;

        through.all = decays.all * dot(dstate, state);
        let da = grads.da.iter_mut().skip(head).step_by(h);
        da.zip(through.decay_gradients(sums.products, r)).for_each(|(da, x)| *da = x);
        Ok(())
    }
}

/// Sums over the heads of a group, and temporary values.
struct Sums<'a, A> {
    /// `Σ dy·xᵀ ⊙ Λ·scale`, `[rows, rows]`
    weights: &'a mut [A],
    /// `[rows, n]`
    dq: &'a mut [A],
    /// `[rows, n]`
    dk: &'a mut [A],
    /// `[rows, rows]`
    products: &'a mut [A],
    /// `[rows, n]`
    term: &'a mut [A],
    /// `dy` of a head, `[rows, p]`
    dy: &'a mut [A],
    /// `q` of a group, `[rows, n]`
    q: &'a mut [A],
    panels: Panels<A>,
}

/// What passes through the decays of a chunk, by step.
struct Through<A> {
    /// From the state before the chunk to the outputs of each step.
    before: Vec<A>,
    /// From the inputs of each step to the state after the chunk.
    after: Vec<A>,
    /// From the state before to the one after.
    all: A,
}

impl<A: Real> Through<A> {
    /// The gradient of `a` at each step, with `Γ`, `[rows, rows]`, what passes from the inputs of
    /// row `j` to the outputs of row `i`, of a step that is not earlier:
    /// `da_t = Σ_{i≥t>j} Γ[i, j] + Σ_{i≥t} before_i + Σ_{j<t} after_j + all`.
    fn decay_gradients(&self, gamma: &[A], r: usize) -> Vec<A> {
        let steps = self.before.len();
        let rows = steps * r;
        // Sums of Γ over the rows of all steps from t on.
        let mut columns = vec![A::ZERO; rows];
        let mut da = vec![self.all; steps];
        let mut before = A::ZERO;
        for t in (0..steps).rev() {
            columns.truncate(t * r);
            gamma[t * r * rows..(t + 1) * r * rows]
                .chunks(rows)
                .for_each(|row| add(&mut columns, &row[..t * r]));
            before += self.before[t];
            da[t] += sum(&columns) + before;
        }
        let mut after = A::ZERO;
        for (da, term) in da.iter_mut().zip(&self.after) {
            *da += after;
            after += *term;
        }
        da
    }
}

/// `Σ scores[i, j]·products[i, j]`, both `[rows, rows]`, over the rows `i` and `j` of each step.
fn own_products<A: Real>(scores: &[A], products: &[A], steps: usize) -> impl Iterator<Item = A> {
    let rows = products.len().isqrt();
    let r = rows / steps;
    (0..steps).map(move |t| {
        let own = (t * r..(t + 1) * r).map(|i| i * rows + t * r..i * rows + (t + 1) * r);
        own.fold(A::ZERO, |sum, own| sum + dot(&scores[own.clone()], &products[own]))
    })
}

vectorized! {
    /// With `weight[i, j] = products[i, j]·factors[j]`, the factors of step `i / r`: adds it to
    /// `weights`, and sets `products` to `weight ⊙ scores`, which is `Γ`; not for later steps.
    fn weigh<I: Isa, A: Real>(products: &mut [A], weights: &mut [A], masks: &Masks<A>) {
        let (steps, r) = (masks.scale.len(), masks.r);
        let rows = steps * r;
        let mut factors = [A::ZERO; super::CHUNK];
        for t in 0..steps {
            let factors = &mut factors[..(t + 1) * r];
            masks.factors(t, factors);
            let len = factors.len();
            for i in t * r..(t + 1) * r {
                let (scores, row) = (&masks.scores[i * rows..][..len], i * rows);
                let (products, weights) = (&mut products[row..][..len], &mut weights[row..][..len]);
                for j in 0..len {
                    let weight = products[j] * factors[j];
                    weights[j] += weight;
                    products[j] = weight * scores[j];
                }
            }
        }
    }
}

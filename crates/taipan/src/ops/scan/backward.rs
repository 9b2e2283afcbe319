//! The gradient of the scan on the CPU.

use std::array::from_fn;
use std::f64::consts::LN_2;

use super::cpu::{
    Channels, Chunk, ChunkBuffer, ChunkInputs, Group, Inputs, LANES, Lanes, columns, gather,
    scatter, step_sizes,
};
use super::discretize::{Discretized, ZERO_ORDER_HOLD, discretize, with_method};
use super::{CHUNK, OP, Optional, SelectiveScan, Sizes, StepSize};
use crate::cpu::isa::{Isa, vectorized};
use crate::cpu::map::add;
use crate::cpu::reduce::join;
use crate::cpu::threads::{for_chunks, for_tasks};
use crate::cpu::{CpuBuffer, CpuView, CpuViewMut};
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::Result;
use crate::function::SiluParts;
use crate::kernel::CpuIo;

/// The gradients of all inputs except `seq_start`, in their order, from the inputs, the saved
/// states, and the gradients of the two results.
///
/// ```text
/// dy      = dout·silu(z)                      dz = dout·y·silu'(z)
/// g_t     = c_t·dy_t + ā_{t+1}·g_{t+1}        at the end, plus the gradient of the final state
/// dc_t    = Σ_d dy_t·h_t                      dd = Σ_{b,t} dy_t·u_t
/// du_t    = d·dy_t + Σ_n g_t·b̄_t              dinitial_state = ā_1·g_1
/// db_t    = Σ_d g_t·u_t·b_factor_t                where b̄ = b_factor·b
/// dΔ_t    = Σ_n g_t·(A·ā_t·h_{t−1} + u_t·b_t·∂b_factor/∂Δ)
/// da_log  = Σ_{b,t} A·g_t·(Δ_t·ā_t·h_{t−1} + u_t·b_t·∂b_factor/∂A)
/// ddelta  = dΔ·softplus'(delta + delta_bias)  ddelta_bias = Σ_{b,t} ddelta
/// ```
pub(super) fn cpu(scan: &SelectiveScan, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    with_dtype!(inputs[0].spec.dtype(), T: Float => backward::<T>(scan, inputs, outputs))
}

/// What backward reads besides the inputs.
struct Upstream<'a, T: Float> {
    /// `[b, chunks, n, d]`
    saved: &'a [T::Acc],
    /// `[b, l, d]`
    dout: &'a [T],
    /// `[b, d, n]`
    dfinal_state: &'a [T::Acc],
}

/// The outputs of one task: columns of gradients, and partial sums.
struct BackwardTask<'a, T: Float> {
    group: Group,
    /// `[l]`, the group's channels.
    du: Vec<&'a mut [T]>,
    ddelta: Vec<&'a mut [T]>,
    /// Empty without a gate.
    dz: Vec<&'a mut [T]>,
    /// `[channels, n]`, the sum over this row of the batch.
    da_log: &'a mut [T::Acc],
    dinitial_state: &'a mut [T::Acc],
    /// `[channels]`, the sum over this row of the batch.
    dd: &'a mut [T::Acc],
    ddelta_bias: &'a mut [T::Acc],
    /// `[l, n]`, the sum over these channels.
    db: &'a mut [T::Acc],
    dc: &'a mut [T::Acc],
}

fn backward<T: Float>(
    scan: &SelectiveScan,
    inputs: &[CpuView],
    outputs: &mut [CpuViewMut],
) -> Result<()> {
    let [given @ .., saved, dout, dfinal_state] = inputs else {
        unreachable!("saved states and upstreams come last")
    };
    let upstream = Upstream::<T> {
        saved: saved.as_slice(),
        dout: dout.as_slice(),
        dfinal_state: dfinal_state.as_slice(),
    };
    let inputs = Inputs::<T>::new(scan, given);
    let sizes @ Sizes { b, l, d, n } = inputs.sizes;
    let groups = sizes.groups();

    // Partial sums: over the channels of each group, and over the steps of each row.
    let scratch = |len: usize| CpuBuffer::scratch(OP, len * size_of::<T::Acc>());
    let mut partial = [
        scratch(b * groups * l * n)?,
        scratch(b * groups * l * n)?,
        scratch(b * d * n)?,
        scratch(b * d * n)?,
        scratch(b * d)?,
        scratch(b * d)?,
    ];
    {
        let mut outputs: Vec<Option<_>> = outputs.iter_mut().map(Some).collect();
        let mut columns_of = |i: Option<usize>| {
            let output = i.and_then(|i| outputs[i].take());
            columns(output.map(|output| output.as_mut_slice::<T>()), l, sizes)
        };
        let mut dus = columns_of(Some(0)).into_iter();
        let mut ddeltas = columns_of(Some(1)).into_iter();
        let mut dzs = columns_of(scan.index(Optional::Z)).into_iter();
        let mut rest = partial.each_mut().map(|buffer| buffer.as_mut_slice::<T::Acc>());
        let mut tasks: Vec<BackwardTask<T>> = Vec::new();
        for group in sizes.tasks() {
            let width = group.channels.len();
            let lens = [l * n, l * n, width * n, width * n, width, width];
            let mut lens = lens.into_iter();
            let [db, dc, da_log, dinitial_state, dd, ddelta_bias] = rest.each_mut().map(|rest| {
                let len = lens.next().expect("six");
                rest.split_off_mut(..len).expect("as long as the tasks together")
            });
            tasks.push(BackwardTask {
                group,
                du: dus.next().expect("one for each task"),
                ddelta: ddeltas.next().expect("one for each task"),
                dz: dzs.next().expect("one for each task"),
                da_log,
                dinitial_state,
                dd,
                ddelta_bias,
                db,
                dc,
            });
        }
        for_tasks(tasks, sizes.work(), |task| chunks(&inputs, &upstream, task));
    }
    let [db, dc, da_log, dinitial_state, dd, ddelta_bias] =
        partial.each_ref().map(|buffer| buffer.as_slice::<T::Acc>());
    sum_partials(da_log, b, outputs[2].as_mut_slice::<T::Acc>());
    for (partials, out) in [(db, 3), (dc, 4)] {
        let out = outputs[out].as_mut_slice::<T>();
        let entries = partials.chunks((groups * l * n).max(1)).zip(out.chunks_mut((l * n).max(1)));
        entries.for_each(|(partials, out)| sum_partials(partials, groups, out));
        if groups == 0 {
            out.fill(T::of_f64(0.0));
        }
    }
    for (partials, which) in [(dd, Optional::D), (ddelta_bias, Optional::DeltaBias)] {
        if let Some(i) = scan.index(which) {
            sum_partials(partials, b, outputs[i].as_mut_slice::<T::Acc>());
        }
    }
    if let Some(i) = scan.index(Optional::InitialState) {
        outputs[i].as_mut_slice::<T::Acc>().copy_from_slice(dinitial_state);
    }
    Ok(())
}

/// The sum of `count` partial sums, `[count, out.len()]`.
fn sum_partials<T: Float>(partials: &[T::Acc], count: usize, out: &mut [T]) {
    const STRIP: usize = 1024;
    let len = out.len();
    for_chunks(out, STRIP, |start, out| {
        let mut sum = [T::Acc::ZERO; STRIP];
        let sum = &mut sum[..out.len()];
        for i in 0..count {
            add(sum, &partials[i * len + start..][..out.len()]);
        }
        T::narrow(sum, out);
    });
}

/// The chunks of a group, from the last to the first.
fn chunks<T: Float>(inputs: &Inputs<T>, upstream: &Upstream<T>, mut task: BackwardTask<T>) {
    let group = &task.group;
    let (sizes, n, blocks) = (inputs.sizes, inputs.sizes.n, group.blocks());
    let zeros = [T::Acc::ZERO; LANES];
    let channels = Channels::new(inputs, group);
    let first = (group.sequence * sizes.d + group.channels.start) * n;
    let mut sums = Accumulators {
        carry: gather(&upstream.dfinal_state[first..], group, n, T::Acc::ZERO),
        da: vec![zeros; blocks * n],
        dd: vec![zeros; blocks],
        ddelta_bias: vec![zeros; blocks],
        db: vec![zeros; CHUNK * n],
        dc: vec![zeros; CHUNK * n],
    };
    let [mut u, mut raw, mut size, mut z, mut dy] =
        [(); 5].map(|()| ChunkBuffer::new(sizes, group));
    let mut grads =
        ChunkGrads { du: ChunkBuffer::new(sizes, group), ddelta: ChunkBuffer::new(sizes, group) };
    let mut dz_buffer = ChunkBuffer::new(sizes, group);
    let [mut b_wide, mut c_wide] = [(); 2].map(|()| vec![T::Acc::ZERO; CHUNK * n]);
    let mut recomputed = Recomputed::new(n);

    for chunk in (0..sizes.chunks()).rev() {
        let steps = sizes.chunk(chunk);
        u.load(inputs.u, sizes, group, &steps);
        raw.load(inputs.delta, sizes, group, &steps);
        raw.add(&channels.delta_bias);
        size.lanes.copy_from_slice(&raw.lanes);
        step_sizes(inputs.step, size.lanes.as_flattened_mut());
        dy.load(upstream.dout, sizes, group, &steps);
        if let Some(gate) = inputs.z {
            z.load(gate, sizes, group, &steps);
        }
        if let Some(earlier) = chunk.checked_sub(1) {
            for x in [inputs.u, inputs.delta, upstream.dout].into_iter().chain(inputs.z) {
                inputs.prefetch(x, group, sizes.chunk(earlier));
            }
        }
        let b = inputs.rows(inputs.b, group.sequence, &steps);
        let c = inputs.rows(inputs.c, group.sequence, &steps);
        let (b, c) = (widened(b, &mut b_wide[..b.len()]), widened(c, &mut c_wide[..c.len()]));
        let seq_start = inputs.seq_start(group.sequence, &steps);
        let inputs_of_chunk =
            ChunkInputs { steps: steps.len(), seq_start, u: &u, size: &size, b, c };
        sums.db.fill(zeros);
        sums.dc.fill(zeros);
        for block in 0..blocks {
            let row = (group.sequence * sizes.chunks() + chunk) * n;
            for (k, state) in recomputed.states[..n].iter_mut().enumerate() {
                let saved = &upstream.saved[(row + k) * sizes.d..][group.channels.clone()];
                let saved = &saved[group.block(block)];
                state[..saved.len()].copy_from_slice(saved);
            }
            let chunk = inputs_of_chunk.block(block, &channels);
            let method = inputs.method();
            with_method!(method, METHOD => recompute::<_, METHOD>(&chunk, &mut recomputed));
            if inputs.z.is_some() {
                gate_grad(&chunk, &recomputed.y, &z, &mut dy, &mut dz_buffer);
            }
            let (recomputed, sums, grads) = (&mut recomputed, &mut sums, &mut grads);
            with_method!(method, METHOD => {
                reverse::<_, METHOD>(&chunk, recomputed, &dy, sums, grads)
            });
        }
        if inputs.step == StepSize::Softplus {
            softplus_grad(raw.lanes.as_flattened(), grads.ddelta.lanes.as_flattened_mut());
        }
        for row in grads.ddelta.lanes.chunks(blocks).take(steps.len()) {
            add(sums.ddelta_bias.as_flattened_mut(), row.as_flattened());
        }
        grads.du.store(&mut task.du[steps.clone()]);
        grads.ddelta.store(&mut task.ddelta[steps.clone()]);
        if inputs.z.is_some() {
            dz_buffer.store(&mut task.dz[steps.clone()]);
        }
        for (lanes, out) in [(&sums.db, &mut *task.db), (&sums.dc, &mut *task.dc)] {
            let out = &mut out[steps.start * n..steps.end * n];
            out.iter_mut().zip(lanes).for_each(|(sum, lanes)| *sum = join(*lanes));
        }
    }
    for (da, rate) in sums.da.as_flattened_mut().iter_mut().zip(channels.rates.as_flattened()) {
        *da *= *rate * T::Acc::of(LN_2);
    }
    scatter(&sums.da, n, task.da_log);
    scatter(&sums.carry, n, task.dinitial_state);
    for (lanes, out) in [(&sums.dd, task.dd), (&sums.ddelta_bias, task.ddelta_bias)] {
        out.copy_from_slice(&lanes.as_flattened()[..out.len()]);
    }
}

/// The sums over the chunks of a group.
struct Accumulators<A> {
    /// `[blocks, n]`: `ā_{t+1}·g_{t+1}`, from chunk to chunk.
    carry: Vec<Lanes<A>>,
    /// `[blocks, n]`
    da: Vec<Lanes<A>>,
    /// `[blocks]`
    dd: Vec<Lanes<A>>,
    ddelta_bias: Vec<Lanes<A>>,
    /// `[CHUNK, n]`: summed over blocks, not yet over lanes.
    db: Vec<Lanes<A>>,
    dc: Vec<Lanes<A>>,
}

/// The gradients of a chunk.
struct ChunkGrads<A> {
    du: ChunkBuffer<A>,
    /// dΔ until it is complete.
    ddelta: ChunkBuffer<A>,
}

/// What backward recomputes of forward, for a chunk of a block.
struct Recomputed<A> {
    /// `[CHUNK + 1, n]`: before each step, and after the last.
    states: Vec<Lanes<A>>,
    /// `[CHUNK, n]`
    a_bars: Vec<Lanes<A>>,
    /// `[CHUNK, n]`, with zero-order hold.
    b_factors: Vec<Lanes<A>>,
    /// `[CHUNK]`, before the gate.
    y: [Lanes<A>; CHUNK],
    /// `[n]`: the contribution of a chunk to da.
    da: Vec<Lanes<A>>,
    /// `[n]`: the state before the first step of a sequence.
    zeros: Vec<Lanes<A>>,
}

impl<A: Real> Recomputed<A> {
    fn new(n: usize) -> Recomputed<A> {
        let lanes = |count: usize| vec![[A::ZERO; LANES]; count];
        Recomputed {
            states: lanes((CHUNK + 1) * n),
            a_bars: lanes(CHUNK * n),
            b_factors: lanes(CHUNK * n),
            y: [[A::ZERO; LANES]; CHUNK],
            da: lanes(n),
            zeros: lanes(n),
        }
    }
}

vectorized! {
    /// The states, factors and outputs of a chunk, from the states before it.
    fn recompute<I: Isa, A: Real; const METHOD: u8>(
        chunk: &Chunk<A>,
        recomputed: &mut Recomputed<A>,
    ) {
        let (block, n) = (chunk.block, chunk.n());
        let (rates, inverses) = (&chunk.rates[..n], &chunk.inverses[..n]);
        for t in 0..chunk.steps {
            let (u, size) = (*chunk.u.at(t, block), *chunk.size.at(t, block));
            let (b, c) = chunk.rows(t);
            let (before, after) = recomputed.states.split_at_mut((t + 1) * n);
            let before = if chunk.seq_start[t] { &recomputed.zeros[..] } else { &before[t * n..] };
            let (before, after) = (&before[..n], &mut after[..n]);
            let a_bars = &mut recomputed.a_bars[t * n..][..n];
            let scaled: Lanes<A> = from_fn(|i| size[i] * u[i]);
            let mut y: Lanes<A> = from_fn(|i| chunk.d[i] * u[i]);
            for k in 0..n {
                let (rate, inverse, before) = (rates[k], inverses[k], before[k]);
                let step: [_; LANES] =
                    from_fn(|i| discretize::<I, _, METHOD>(size[i], rate[i], inverse[i]));
                a_bars[k] = from_fn(|i| step[i].a_bar);
                if METHOD == ZERO_ORDER_HOLD {
                    recomputed.b_factors[t * n + k] = from_fn(|i| step[i].b_factor);
                }
                after[k] = from_fn(|i| {
                    let zero_order_hold = METHOD == ZERO_ORDER_HOLD;
                    let input = if zero_order_hold { step[i].b_factor * u[i] } else { scaled[i] };
                    step[i].a_bar.fma::<I>(before[i], input * b[k])
                });
                y = from_fn(|i| c[k].fma::<I>(after[k][i], y[i]));
            }
            recomputed.y[t] = y;
        }
    }

    /// `dz = dy·y·silu'(z)` and `dy = dy·silu(z)`
    fn gate_grad<I: Isa, A: Real>(
        chunk: &Chunk<A>,
        y: &[Lanes<A>; CHUNK],
        z: &ChunkBuffer<A>,
        dy: &mut ChunkBuffer<A>,
        dz: &mut ChunkBuffer<A>,
    ) {
        for t in 0..chunk.steps {
            let (z, y) = (z.at(t, chunk.block), &y[t]);
            let (dy, dz) = (dy.at_mut(t, chunk.block), dz.at_mut(t, chunk.block));
            for i in 0..LANES {
                let SiluParts { value, sigmoid, x } = SiluParts::new::<I>(z[i]);
                dz[i] = dy[i] * y[i] * sigmoid * (A::ONE + x * (A::ONE - sigmoid));
                dy[i] *= value;
            }
        }
    }

    /// `dx = dx·softplus'(x)`
    fn softplus_grad<I: Isa, A: Real>(x: &[A], dx: &mut [A]) {
        for (x, dx) in x.iter().zip(dx) {
            *dx *= x.sigmoid::<I>();
        }
    }

    /// The gradients of a chunk, from its last step to its first.
    fn reverse<I: Isa, A: Real; const METHOD: u8>(
        chunk: &Chunk<A>,
        recomputed: &mut Recomputed<A>,
        dy: &ChunkBuffer<A>,
        sums: &mut Accumulators<A>,
        grads: &mut ChunkGrads<A>,
    ) {
        let (block, n, zeros) = (chunk.block, chunk.n(), [A::ZERO; LANES]);
        let (rates, inverses) = (&chunk.rates[..n], &chunk.inverses[..n]);
        let carry = &mut sums.carry[block * n..][..n];
        let da = &mut recomputed.da[..n];
        da.fill(zeros);
        for t in (0..chunk.steps).rev() {
            let (u, size) = (*chunk.u.at(t, block), *chunk.size.at(t, block));
            let dy = *dy.at(t, block);
            let (b, c) = chunk.rows(t);
            let (before, after) = recomputed.states.split_at((t + 1) * n);
            let before = if chunk.seq_start[t] { &recomputed.zeros[..] } else { &before[t * n..] };
            let (before, after) = (&before[..n], &after[..n]);
            let a_bars = &recomputed.a_bars[t * n..][..n];
            let (db, dc) = (&mut sums.db[t * n..][..n], &mut sums.dc[t * n..][..n]);
            let scaled: Lanes<A> = from_fn(|i| size[i] * u[i]);
            // Σ_n g·b·b_factor, Σ_n g·b·∂b_factor/∂Δ and Σ_n g·ā·h_{t−1}·rate.
            let (mut by_input, mut by_size, mut by_decay) = (zeros, zeros, zeros);
            for k in 0..n {
                let (a_bar, rate) = (a_bars[k], rates[k]);
                let g: Lanes<A> = from_fn(|i| c[k].fma::<I>(dy[i], carry[k][i]));
                dc[k] = from_fn(|i| dy[i].fma::<I>(after[k][i], dc[k][i]));
                let decayed: Lanes<A> = from_fn(|i| g[i] * a_bar[i]);
                let gah: Lanes<A> = from_fn(|i| decayed[i] * before[k][i]);
                by_decay = from_fn(|i| rate[i].fma::<I>(gah[i], by_decay[i]));
                da[k] = from_fn(|i| size[i].fma::<I>(gah[i], da[k][i]));
                carry[k] = decayed;
                if METHOD == ZERO_ORDER_HOLD {
                    let (b_factor, inverse) = (recomputed.b_factors[t * n + k], inverses[k]);
                    let gu: Lanes<A> = from_fn(|i| g[i] * u[i]);
                    db[k] = from_fn(|i| gu[i].fma::<I>(b_factor[i], db[k][i]));
                    by_input = from_fn(|i| (g[i] * b[k]).fma::<I>(b_factor[i], by_input[i]));
                    by_size = from_fn(|i| decayed[i].fma::<I>(b[k], by_size[i]));
                    let mut derivative = zeros;
                    for i in 0..LANES {
                        let step = Discretized { a_bar: a_bar[i], b_factor: b_factor[i] };
                        derivative[i] =
                            b_factor_derivative::<I, _>(size[i], rate[i], inverse[i], step);
                    }
                    da[k] = from_fn(|i| (gu[i] * b[k]).fma::<I>(derivative[i], da[k][i]));
                } else {
                    db[k] = from_fn(|i| g[i].fma::<I>(scaled[i], db[k][i]));
                    by_size = from_fn(|i| g[i].fma::<I>(b[k], by_size[i]));
                }
            }
            if chunk.seq_start[t] {
                carry.fill(zeros);
            }
            if METHOD != ZERO_ORDER_HOLD {
                by_input = from_fn(|i| size[i] * by_size[i]);
            }
            *grads.du.at_mut(t, block) = from_fn(|i| chunk.d[i].fma::<I>(dy[i], by_input[i]));
            *grads.ddelta.at_mut(t, block) =
                from_fn(|i| u[i].fma::<I>(by_size[i], by_decay[i] * A::of(LN_2)));
            sums.dd[block] = from_fn(|i| dy[i].fma::<I>(u[i], sums.dd[block][i]));
        }
        for (sum, da) in sums.da[block * n..][..n].iter_mut().zip(da) {
            *sum = from_fn(|i| sum[i] + da[i]);
        }
    }
}

/// `∂b_factor/∂A = (Δ·ā − b_factor)/A = Δ²·φ₁'(Δ·A)` with zero-order hold. Near 0 the difference
/// would cancel: there, the series `φ₁'(x) = Σ xᵏ·(k+1)/(k+2)!` is used.
#[inline(always)]
fn b_factor_derivative<I: Isa, A: Real>(size: A, rate: A, inverse: A, step: Discretized<A>) -> A {
    /// `(k+1)/(k+2)!`
    const SERIES: [f64; 12] = {
        let (mut series, mut factorial, mut k) = ([0.0; 12], 1.0, 0);
        while k < series.len() {
            factorial *= (k + 2) as f64;
            series[k] = (k + 1) as f64 / factorial;
            k += 1;
        }
        series
    };
    let terms = if size_of::<A>() == size_of::<f32>() { 6 } else { 12 };
    let (x, small) = (size * rate * A::of(LN_2), A::of(0.125));
    let sum = SERIES[..terms].iter().rev().fold(A::ZERO, |sum, c| sum.fma::<I>(x, A::of(*c)));
    if x < small && x > -small {
        size * size * sum
    } else {
        (size * step.a_bar - step.b_factor) * inverse
    }
}

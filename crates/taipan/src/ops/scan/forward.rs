//! The scan on the CPU.

use std::array::from_fn;
use std::ops::Range;

use super::cpu::{
    Channels, Chunk, ChunkBuffer, ChunkInputs, Group, Inputs, LANES, Lanes, columns, gather,
    scatter, step_sizes,
};
use super::discretize::{ZERO_ORDER_HOLD, discretize, inverse, rate, with_method};
use super::{CHUNK, Scan, SelectiveScan, Sizes};
use crate::cpu::CpuViewMut;
use crate::cpu::isa::{Isa, vectorized};
use crate::cpu::map::{add, multiply_silu};
use crate::cpu::reduce;
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::Result;
use crate::kernel::CpuIo;

pub(super) fn cpu(scan: &SelectiveScan, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let inputs = &Inputs::<T>::new(scan, inputs);
        match inputs.sizes.l {
            1 => one_step(inputs, outputs),
            _ => forward(inputs, outputs),
        }
    });
    Ok(())
}

/// The outputs of one task.
struct ForwardTask<'a, T: Float> {
    group: Group,
    /// `[l]`, the group's channels.
    y: Vec<&'a mut [T]>,
    /// `[channels, n]`
    final_state: &'a mut [T::Acc],
    /// `[chunks, n]`, the group's channels; empty unless states are saved for backward.
    saved: Vec<&'a mut [T::Acc]>,
}

fn forward<T: Float>(inputs: &Inputs<T>, outputs: &mut [CpuViewMut]) {
    let sizes = inputs.sizes;
    let [y, final_state, saved @ ..] = outputs else { unreachable!("two results") };
    let ys = columns(Some(y.as_mut_slice::<T>()), sizes.l, sizes);
    let saved = saved.first_mut().map(|saved| saved.as_mut_slice::<T::Acc>());
    let saved_columns = columns(saved, sizes.chunks() * sizes.n, sizes);
    let mut final_state = final_state.as_mut_slice::<T::Acc>();
    let mut tasks: Vec<ForwardTask<T>> = Vec::new();
    for ((group, y), saved) in sizes.tasks().zip(ys).zip(saved_columns) {
        let (own, others) = final_state.split_at_mut(group.channels.len() * sizes.n);
        final_state = others;
        tasks.push(ForwardTask { group, y, final_state: own, saved });
    }
    for_tasks(tasks, sizes.work(), |task| steps(inputs, task));
}

/// A sequence of steps: vectors run over channels.
fn steps<T: Float>(inputs: &Inputs<T>, task: ForwardTask<T>) {
    let ForwardTask { group, mut y, final_state, mut saved } = task;
    let (sizes, n, blocks) = (inputs.sizes, inputs.sizes.n, group.blocks());
    let channels = Channels::new(inputs, &group);
    let mut states = match inputs.initial_state {
        Some(initial_state) => {
            let first = (group.sequence * sizes.d + group.channels.start) * n;
            gather(&initial_state[first..], &group, n, T::Acc::ZERO)
        }
        None => vec![[T::Acc::ZERO; LANES]; blocks * n],
    };
    let [mut u, mut size, mut z, mut out] = [(); 4].map(|()| ChunkBuffer::new(sizes, &group));
    let [mut b_wide, mut c_wide] = [(); 2].map(|()| vec![T::Acc::ZERO; CHUNK * n]);

    for chunk in 0..sizes.chunks() {
        for (k, saved) in saved.iter_mut().skip(chunk * n).take(n).enumerate() {
            for (block, saved) in saved.chunks_mut(LANES).enumerate() {
                saved.copy_from_slice(&states[block * n + k][..saved.len()]);
            }
        }
        let steps = sizes.chunk(chunk);
        u.load(inputs.u, sizes, &group, &steps);
        size.load(inputs.delta, sizes, &group, &steps);
        for x in [inputs.u, inputs.delta].into_iter().chain(inputs.z) {
            inputs.prefetch(x, &group, sizes.chunk(chunk + 1));
        }
        size.add(&channels.delta_bias);
        step_sizes(inputs.step, size.lanes.as_flattened_mut());
        let b = inputs.rows(inputs.b, group.sequence, &steps);
        let c = inputs.rows(inputs.c, group.sequence, &steps);
        let (b, c) = (widened(b, &mut b_wide[..b.len()]), widened(c, &mut c_wide[..c.len()]));
        let seq_start = inputs.seq_start(group.sequence, &steps);
        let chunk = ChunkInputs { steps: steps.len(), seq_start, u: &u, size: &size, b, c };
        for block in 0..blocks {
            let chunk = chunk.block(block, &channels);
            let states = &mut states[block * n..][..n];
            let method = inputs.method();
            with_method!(method, METHOD => scan_chunk::<_, METHOD>(&chunk, states, &mut out));
        }
        if let Some(gate_input) = inputs.z {
            z.load(gate_input, sizes, &group, &steps);
            multiply_silu(out.lanes.as_flattened_mut(), z.lanes.as_flattened());
        }
        out.store(&mut y[steps]);
    }
    scatter(&states, n, final_state);
}

vectorized! {
    /// Advance the states of a block by a chunk, and compute its outputs before the gate.
    fn scan_chunk<I: Isa, A: Real; const METHOD: u8>(
        chunk: &Chunk<A>,
        states: &mut [Lanes<A>],
        out: &mut ChunkBuffer<A>,
    ) {
        let (block, n) = (chunk.block, chunk.n());
        let (rates, inverses, states) = (&chunk.rates[..n], &chunk.inverses[..n], &mut states[..n]);
        for t in 0..chunk.steps {
            if chunk.seq_start[t] {
                states.fill([A::ZERO; LANES]);
            }
            let (u, size) = (*chunk.u.at(t, block), *chunk.size.at(t, block));
            let (b, c) = chunk.rows(t);
            let scaled: Lanes<A> = from_fn(|i| size[i] * u[i]);
            let mut sum: Lanes<A> = from_fn(|i| chunk.d[i] * u[i]);
            for k in 0..n {
                let (rate, inverse, state) = (rates[k], inverses[k], states[k]);
                states[k] = from_fn(|i| {
                    let step = discretize::<I, _, METHOD>(size[i], rate[i], inverse[i]);
                    let zero_order_hold = METHOD == ZERO_ORDER_HOLD;
                    let input = if zero_order_hold { step.b_factor * u[i] } else { scaled[i] };
                    step.a_bar.fma::<I>(state[i], input * b[k])
                });
                sum = from_fn(|i| c[k].fma::<I>(states[k][i], sum[i]));
            }
            *out.at_mut(t, block) = sum;
        }
    }
}

/// Channels of a block of a single step.
const STEP_BLOCK: usize = 256;

/// A single step, as in decoding: vectors run over states, which are contiguous in memory.
fn one_step<T: Float>(inputs: &Inputs<T>, outputs: &mut [CpuViewMut]) {
    let Sizes { d, n, .. } = inputs.sizes;
    let [y, final_state, saved @ ..] = outputs else { unreachable!("two results") };
    let states = final_state.as_mut_slice::<T::Acc>().chunks_mut((d * n).max(1));
    if let Some(saved) = saved.first_mut() {
        // [b, n, d]
        let saved = saved.as_mut_slice::<T::Acc>().chunks_mut((d * n).max(1));
        for (sequence, saved) in saved.enumerate() {
            let initial = inputs.initial_state_of(sequence);
            for (i, saved) in saved.iter_mut().enumerate() {
                let (k, channel) = (i / d, i % d);
                *saved = initial.map_or(T::Acc::ZERO, |initial| initial[channel * n + k]);
            }
        }
    }
    // Groups of equal sizes, of which each is worth a task.
    let width = d.div_ceil((d * n).div_ceil(GRAIN).max(1)).next_multiple_of(LANES).max(LANES);
    let sequences = y.as_mut_slice::<T>().chunks_mut(d.max(1)).zip(states).enumerate();
    let tasks = sequences.flat_map(|(sequence, (y, states))| {
        let groups = y.chunks_mut(width).zip(states.chunks_mut(width * n)).enumerate();
        groups.map(move |(group, (y, states))| (sequence, group * width, y, states))
    });
    for_tasks(tasks, inputs.sizes.work(), |(sequence, first, y, states)| {
        // Padded with zeros.
        let [mut b, mut c] = [[[T::Acc::ZERO; LANES]; Scan::MAX_STATES.div_ceil(LANES)]; 2];
        T::widen(inputs.rows(inputs.b, sequence, &(0..1)), &mut b.as_flattened_mut()[..n]);
        T::widen(inputs.rows(inputs.c, sequence, &(0..1)), &mut c.as_flattened_mut()[..n]);
        let blocks = y.chunks_mut(STEP_BLOCK).zip(states.chunks_mut(STEP_BLOCK * n)).enumerate();
        for (block, (y, states)) in blocks {
            let first = first + block * STEP_BLOCK;
            let block = StepBlock { sequence, channels: first..first + y.len(), b: &b, c: &c };
            block.run(inputs, y, states);
        }
    });
}

/// At most [`STEP_BLOCK`] channels of a sequence.
struct StepBlock<'a, A> {
    sequence: usize,
    channels: Range<usize>,
    /// `[n]`, padded
    b: &'a [Lanes<A>],
    c: &'a [Lanes<A>],
}

impl<A: Real> StepBlock<'_, A> {
    /// A single step.
    fn run<T: Float<Acc = A>>(self, inputs: &Inputs<T>, y: &mut [T], states: &mut [A]) {
        let (Sizes { d, n, .. }, StepBlock { sequence, channels, b, c }) = (inputs.sizes, self);
        let of_states = channels.start * n..channels.end * n;
        let at = sequence * d + channels.start..sequence * d + channels.end;
        let [mut wide_u, mut size, mut wide_z, mut wide_y, zeros] = [[T::Acc::ZERO; STEP_BLOCK]; 5];
        let u = widened(&inputs.u[at.clone()], &mut wide_u[..y.len()]);
        let size = &mut size[..y.len()];
        T::widen(&inputs.delta[at.clone()], size);
        if let Some(bias) = inputs.delta_bias {
            add(size, &bias[channels.clone()]);
        }
        step_sizes(inputs.step, size);
        let gate_input = inputs.z.map(|z| widened(&z[at], &mut wide_z[..y.len()]));
        fill_wide(y, &mut wide_y, |out| {
            let step = OneStep {
                n,
                u,
                size,
                a_log: &inputs.a_log[of_states.clone()],
                b,
                c,
                d: inputs.d.map_or(&zeros[..], |d| &d[channels]),
                initial: inputs.initial_state_of(sequence).map(|initial| &initial[of_states]),
                states,
                out: &mut *out,
            };
            with_method!(inputs.method(), METHOD => step_channels::<_, METHOD>(step));
            if let Some(gate_input) = gate_input {
                multiply_silu(out, gate_input);
            }
        });
    }
}

/// A single step of some channels.
struct OneStep<'a, A> {
    n: usize,
    /// `[channels]`
    u: &'a [A],
    size: &'a [A],
    d: &'a [A],
    out: &'a mut [A],
    /// `[channels, n]`; without `initial`, states begin with zeros.
    a_log: &'a [A],
    initial: Option<&'a [A]>,
    states: &'a mut [A],
    /// `[n]`, padded
    b: &'a [Lanes<A>],
    c: &'a [Lanes<A>],
}

vectorized! {
    fn step_channels<I: Isa, A: Real; const METHOD: u8>(step: OneStep<A>) {
        let OneStep { n, u, size, d, out, a_log, initial, states, b, c } = step;
        let channels = a_log.chunks_exact(n).zip(states.chunks_exact_mut(n));
        for (i, ((a_log, states), (u, size))) in channels.zip(u.iter().zip(size)).enumerate() {
            let (whole_a_log, rest_a_log) = a_log.as_chunks::<LANES>();
            let initial = initial.map_or(&[][..], |initial| &initial[i * n..(i + 1) * n]);
            let (whole_initial, rest_initial) = initial.as_chunks::<LANES>();
            let (whole, rest) = states.as_chunks_mut::<LANES>();
            for (j, ((a_log, states), b)) in whole_a_log.iter().zip(whole).zip(b).enumerate() {
                let initial = whole_initial.get(j).copied().unwrap_or([A::ZERO; LANES]);
                *states = advance::<I, _, METHOD>([*size, *u], a_log, b, &initial);
            }
            if !rest.is_empty() {
                let [mut a_log, mut initial] = [[A::ZERO; LANES]; 2];
                a_log[..rest.len()].copy_from_slice(rest_a_log);
                initial[..rest_initial.len()].copy_from_slice(rest_initial);
                let b = &b[whole_a_log.len()];
                let states = advance::<I, _, METHOD>([*size, *u], &a_log, b, &initial);
                rest.copy_from_slice(&states[..rest.len()]);
            }
        }
        // In a second loop: loads that follow a store to the same address too closely would stall.
        let results = states.chunks_exact(n).zip(out).zip(u.iter().zip(d));
        for ((states, out), (u, d)) in results {
            let (whole, rest) = states.as_chunks::<LANES>();
            let mut sums = [A::ZERO; LANES];
            for (states, c) in whole.iter().zip(c) {
                sums = from_fn(|i| c[i].fma::<I>(states[i], sums[i]));
            }
            for (i, state) in rest.iter().enumerate() {
                sums[i] = c[whole.len()][i].fma::<I>(*state, sums[i]);
            }
            *out = d.fma::<I>(*u, reduce::join(sums));
        }
    }
}

/// A single step of one channel, for [`LANES`] of its states.
#[inline(always)]
fn advance<I: Isa, A: Real, const METHOD: u8>(
    [size, u]: [A; 2],
    a_log: &Lanes<A>,
    b: &Lanes<A>,
    states: &Lanes<A>,
) -> Lanes<A> {
    from_fn(|i| {
        let rate = rate::<I, _>(a_log[i]);
        let step = discretize::<I, _, METHOD>(size, rate, inverse(rate));
        step.a_bar.fma::<I>(states[i], step.b_factor * u * b[i])
    })
}

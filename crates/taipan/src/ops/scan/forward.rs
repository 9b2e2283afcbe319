//! The scan on the CPU.

use std::array::from_fn;

use super::cpu::{
    DECAYING, EULER, Group, Inputs, LANES, Lanes, Rates, Stage, ZERO_ORDER, columns, gather, hold,
    inverse, per_channel, rate, scatter, sum_lanes,
};
use super::{CHUNK, Hold, SelectiveScan, Step};
use crate::cpu::CpuBuffer;
use crate::cpu::isa::{Isa, Job, dispatch};
use crate::cpu::math::Math;
use crate::cpu::prefetch::prefetch;
use crate::cpu::threads::for_tasks;
use crate::dtype::{Float, Real, widened, with_dtype};
use crate::error::Result;
use crate::kernel::View;

pub(super) fn cpu(
    scan: &SelectiveScan,
    inputs: &[View<&CpuBuffer>],
    outputs: &mut [View<&mut CpuBuffer>],
) -> Result<()> {
    with_dtype!(inputs[0].spec.dtype(), T: Float => forward(&Inputs::<T>::new(scan, inputs), outputs));
    Ok(())
}

/// What a thread fills at a time.
struct Task<'a, T: Float> {
    group: Group,
    /// `[l]`, the group's channels.
    y: Vec<&'a mut [T]>,
    /// `[channels, n]`
    last: &'a mut [T::Acc],
    /// `[chunks, n]`, the group's channels; empty if nobody wants them.
    kept: Vec<&'a mut [T::Acc]>,
}

fn forward<T: Float>(inputs: &Inputs<T>, outputs: &mut [View<&mut CpuBuffer>]) {
    let sizes = inputs.sizes;
    let [y, last, kept @ ..] = outputs else { unreachable!("two results") };
    let ys = columns(Some(y.of_mut::<T>()), sizes.l, sizes);
    let kept = kept.first_mut().map(|kept| kept.of_mut::<T::Acc>());
    let kepts = columns(kept, sizes.chunks() * sizes.n, sizes);
    let mut last = last.of_mut::<T::Acc>();
    let mut tasks: Vec<Task<T>> = Vec::new();
    for ((group, y), kept) in sizes.tasks().zip(ys).zip(kepts) {
        let (own, others) = last.split_at_mut(group.channels.len() * sizes.n);
        last = others;
        tasks.push(Task { group, y, last: own, kept });
    }
    for_tasks(tasks, sizes.work(), |mut task| match (inputs.hold, inputs.step) {
        (Hold::Euler, Step::Softplus) => run::<_, DECAYING>(inputs, &mut task),
        (Hold::Euler, Step::Plain) => run::<_, EULER>(inputs, &mut task),
        (Hold::ZeroOrder, _) => run::<_, ZERO_ORDER>(inputs, &mut task),
    });
}

fn run<'b, T: Float, const RULE: u8>(inputs: &Inputs<'b, T>, task: &mut Task<'b, T>) {
    match inputs.sizes.l {
        1 => dispatch(OneStep::<_, RULE>(inputs, task)),
        _ => dispatch(Forward::<_, RULE>(inputs, task)),
    }
}

/// Many steps: vectors run over channels.
struct Forward<'a, 'b, T: Float, const RULE: u8>(&'a Inputs<'b, T>, &'a mut Task<'b, T>);

impl<T: Float, const RULE: u8> Job for Forward<'_, '_, T, RULE> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Forward(inputs, Task { group, y, last, kept }) = self;
        let (sizes, n, blocks) = (inputs.sizes, inputs.sizes.n, group.blocks());
        let Rates { rates, inverses } = Rates::new::<I, _>(inputs, group);
        let (d, delta_bias) = (per_channel(inputs.d, group), per_channel(inputs.delta_bias, group));
        let mut states = match inputs.state {
            Some(state) => {
                let first = (group.sequence * sizes.d + group.channels.start) * n;
                gather(&state[first..], group, n, T::Acc::ZERO)
            }
            None => vec![[T::Acc::ZERO; LANES]; blocks * n],
        };
        let [mut u, mut size, mut z, mut out] = [(); 4].map(|()| Stage::new(sizes, group));
        let [mut b_wide, mut c_wide] = [(); 2].map(|()| vec![T::Acc::ZERO; CHUNK * n]);

        for chunk in 0..sizes.chunks() {
            for (i, kept) in kept.iter_mut().skip(chunk * n).take(n).enumerate() {
                for (block, kept) in kept.chunks_mut(LANES).enumerate() {
                    kept.copy_from_slice(&states[block * n + i][..kept.len()]);
                }
            }
            let steps = sizes.chunk(chunk);
            y[steps.clone()].iter().for_each(|y| prefetch(y));
            u.load(inputs.u, sizes, group, &steps);
            size.load(inputs.delta, sizes, group, &steps);
            for x in [inputs.u, inputs.delta].into_iter().chain(inputs.z) {
                Stage::<T::Acc>::prefetch(x, sizes, group, sizes.chunk(chunk + 1));
            }
            step_sizes::<I, _>(inputs.step, &mut size, &delta_bias);
            let b = inputs.rows(inputs.b, group.sequence, &steps);
            let c = inputs.rows(inputs.c, group.sequence, &steps);
            let (b, c) = (widened(b, &mut b_wide[..b.len()]), widened(c, &mut c_wide[..c.len()]));
            for block in 0..blocks {
                let (rates, inverses) = (&rates[block * n..][..n], &inverses[block * n..][..n]);
                let states = &mut states[block * n..][..n];
                for (t, step) in steps.clone().enumerate() {
                    if inputs.starts(group.sequence, step) {
                        states.fill([T::Acc::ZERO; LANES]);
                    }
                    let (u, size) = (*u.at(t, block), *size.at(t, block));
                    let (b, c) = (&b[t * n..][..n], &c[t * n..][..n]);
                    let scaled: Lanes<T::Acc> = from_fn(|i| size[i] * u[i]);
                    let mut sum: Lanes<T::Acc> = from_fn(|i| d[block][i] * u[i]);
                    for k in 0..n {
                        let (rate, inverse, state) = (rates[k], inverses[k], states[k]);
                        states[k] = from_fn(|i| {
                            let held = hold::<I, _, RULE>(size[i], rate[i], inverse[i]);
                            let input =
                                if RULE == ZERO_ORDER { held.held * u[i] } else { scaled[i] };
                            held.decay.fma::<I>(state[i], input * b[k])
                        });
                        sum = from_fn(|i| c[k].fma::<I>(states[k][i], sum[i]));
                    }
                    *out.at_mut(t, block) = sum;
                }
            }
            if let Some(gate) = inputs.z {
                z.load(gate, sizes, group, &steps);
                let gate = z.lanes.as_flattened();
                for (y, z) in out.lanes.as_flattened_mut().iter_mut().zip(gate) {
                    *y *= *z * z.sigmoid::<I>();
                }
            }
            out.store(&mut y[steps]);
        }
        scatter(&states, n, last);
    }
}

/// `Δ` from the staged `delta`.
#[inline(always)]
pub(super) fn step_sizes<I: Isa, A: Real>(step: Step, delta: &mut Stage<A>, bias: &[[A; LANES]]) {
    for row in delta.lanes.chunks_mut(delta.blocks) {
        for (x, bias) in row.as_flattened_mut().iter_mut().zip(bias.as_flattened()) {
            *x += *bias;
        }
    }
    if step == Step::Softplus {
        delta.lanes.as_flattened_mut().iter_mut().for_each(|x| *x = x.softplus::<I>());
    }
}

/// One step, as in decoding: vectors run over states, which lie that way in memory.
struct OneStep<'a, 'b, T: Float, const RULE: u8>(&'a Inputs<'b, T>, &'a mut Task<'b, T>);

impl<T: Float, const RULE: u8> Job for OneStep<'_, '_, T, RULE> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let OneStep(inputs, Task { group, y, last, kept }) = self;
        let (sizes, n) = (inputs.sizes, inputs.sizes.n);
        let first = group.sequence * sizes.d + group.channels.start;
        match inputs.state {
            Some(state) if !inputs.starts(group.sequence, 0) => {
                last.copy_from_slice(&state[first * n..][..last.len()]);
            }
            _ => last.fill(T::Acc::ZERO),
        }
        for (k, kept) in kept.iter_mut().enumerate() {
            for (kept, last) in kept.iter_mut().zip(last.chunks(n)) {
                *kept = last[k];
            }
        }
        let [mut u, mut size, mut out] = [(); 3].map(|()| Stage::new(sizes, group));
        u.load(inputs.u, sizes, group, &(0..1));
        size.load(inputs.delta, sizes, group, &(0..1));
        step_sizes::<I, _>(inputs.step, &mut size, &per_channel(inputs.delta_bias, group));
        let d = per_channel(inputs.d, group);
        // Vectors run over states; beyond n, zeros.
        let [mut b, mut c] = [(); 2].map(|()| vec![[T::Acc::ZERO; LANES]; n.div_ceil(LANES)]);
        let row = |x| inputs.rows(x, group.sequence, &(0..1));
        T::widen(row(inputs.b), &mut b.as_flattened_mut()[..n]);
        T::widen(row(inputs.c), &mut c.as_flattened_mut()[..n]);

        let a_log = &inputs.a_log[group.channels.start * n..][..last.len()];
        let mut rates = a_log.to_vec();
        for rate_of in &mut rates {
            *rate_of = rate::<I, _>(*rate_of);
        }
        let channels = rates.chunks_exact(n).zip(last.chunks_exact_mut(n));
        for (channel, (rates, states)) in channels.enumerate() {
            let (block, lane) = (channel / LANES, channel % LANES);
            let (u, size) = (u.lanes[block][lane], size.lanes[block][lane]);
            let mut sums = [T::Acc::ZERO; LANES];
            let (whole_rates, rest_rates) = rates.as_chunks::<LANES>();
            let (whole, rest) = states.as_chunks_mut::<LANES>();
            for (k, (rates, states)) in whole_rates.iter().zip(whole).enumerate() {
                advance::<I, _, RULE>([size, u], rates, &b[k], states);
                sums = from_fn(|i| c[k][i].fma::<I>(states[i], sums[i]));
            }
            if !rest.is_empty() {
                let (k, [mut rates, mut states]) = (whole_rates.len(), [[-T::Acc::ONE; LANES]; 2]);
                rates[..rest.len()].copy_from_slice(rest_rates);
                states[..rest.len()].copy_from_slice(rest);
                advance::<I, _, RULE>([size, u], &rates, &b[k], &mut states);
                sums = from_fn(|i| c[k][i].fma::<I>(states[i], sums[i]));
                rest.copy_from_slice(&states[..rest.len()]);
            }
            out.lanes[block][lane] = d[block][lane].fma::<I>(u, sum_lanes(sums));
        }
        if let Some(gate) = inputs.z {
            u.load(gate, sizes, group, &(0..1));
            let gate = u.lanes.as_flattened();
            for (y, z) in out.lanes.as_flattened_mut().iter_mut().zip(gate) {
                *y *= *z * z.sigmoid::<I>();
            }
        }
        out.store(y);
    }
}

/// A step of one channel, for states side by side.
#[inline(always)]
fn advance<I: Isa, A: Real, const RULE: u8>(
    [size, u]: [A; 2],
    rates: &Lanes<A>,
    b: &Lanes<A>,
    states: &mut Lanes<A>,
) {
    *states = from_fn(|i| {
        let held = hold::<I, _, RULE>(size, rates[i], inverse(rates[i]));
        held.decay.fma::<I>(states[i], held.held * u * b[i])
    });
}

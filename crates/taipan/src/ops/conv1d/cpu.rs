//! The convolution on the CPU: vectors run over channels, tasks over blocks of time.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Conv1d, OP, Sizes};
use crate::cpu::isa::vectorized;
use crate::cpu::map::add;
use crate::cpu::threads::{self, GRAIN, try_for_tasks};
use crate::cpu::{CpuBuffer, CpuView};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::Result;
use crate::function::{Function, Saves};
use crate::kernel::CpuIo;

/// Results of one row that a task computes, or the number of taps if that is larger; partial sums
/// of `dweight` and `dbias` are over the same block.
const TIME: usize = 64;

/// The most channels that a task computes at a time: their data stays in cache.
const STRIP: usize = 2048;

pub(super) fn forward(conv: &Conv1d, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    let [y, next] = outputs else { unreachable!("two results") };
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let (y, next) = (y.as_mut_slice(), next.as_mut_slice());
        ConvInputs::<T>::new(conv, inputs)?.forward(conv.function, y, next)
    })
}

/// `dx`, `dweight` and, if they exist, `dbias` and `dconv_state`; from the inputs and the gradients
/// of both results.
pub(super) fn backward(conv: &Conv1d, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    let [inputs @ .., dy, dnext] = inputs else { unreachable!("two results have gradients") };
    let [dx, dweight, others @ ..] = outputs else { unreachable!("two gradients or more") };
    let (dbias, dconv_state) = others.split_at_mut(conv.bias.is_some() as usize);
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let dys = [dy.as_slice(), dnext.as_slice()];
        ConvInputs::<T>::new(conv, inputs)?.backward(conv.function, dys, Grads {
            dx: dx.as_mut_slice(),
            dweight: dweight.as_mut_slice(),
            dbias: dbias.first_mut().map(|dbias| dbias.as_mut_slice()),
            dconv_state: dconv_state.first_mut().map_or(&mut [], |view| view.as_mut_slice()),
        })
    })
}

/// The inputs of all rows of the batch.
struct ConvInputs<'a, T: Float> {
    sizes: Sizes,
    x: &'a [T],
    /// `[k, d]`, in the wider type; so is `bias`.
    taps: CpuBuffer,
    bias: Option<CpuBuffer>,
    conv_state: Option<&'a [T]>,
    seq_start: Option<&'a [u32]>,
}

/// The outputs of backward.
struct Grads<'a, T> {
    dx: &'a mut [T],
    dweight: &'a mut [T],
    dbias: Option<&'a mut [T]>,
    /// Empty without a `conv_state`.
    dconv_state: &'a mut [T],
}

impl<'a, T: Float> ConvInputs<'a, T> {
    fn new(conv: &Conv1d, inputs: &[CpuView<'a>]) -> Result<ConvInputs<'a, T>> {
        let sizes = Sizes::of(inputs[0].spec, inputs[1].spec);
        let wide = |view: &CpuView| -> Result<CpuBuffer> {
            let mut wide = scratch::<T::Acc>(view.spec.len())?;
            T::widen(view.as_slice::<T>(), wide.as_mut_slice());
            Ok(wide)
        };
        let mut taps = scratch::<T::Acc>(inputs[1].spec.len())?;
        match T::as_acc(inputs[1].as_slice::<T>()) {
            Some(weight) => transpose(weight, sizes.k, taps.as_mut_slice()),
            None => transpose(wide(&inputs[1])?.as_slice::<T::Acc>(), sizes.k, taps.as_mut_slice()),
        }
        Ok(ConvInputs {
            sizes,
            x: inputs[0].as_slice(),
            taps,
            bias: conv.bias.map(|i| wide(&inputs[i])).transpose()?,
            conv_state: conv.conv_state.map(|i| inputs[i].as_slice()),
            seq_start: conv.seq_start.map(|i| inputs[i].as_slice()),
        })
    }
}

/// Memory for this many elements, whose values are unspecified.
fn scratch<A: Real>(len: usize) -> Result<CpuBuffer> {
    CpuBuffer::scratch(OP, len * size_of::<A>())
}

/// The outputs of one task: the gradients of the inputs `times`, of `conv_state` if they are the
/// first, and the partial sums of `dweight` and `dbias`, `[k + 1, d]`.
struct BlockGrads<'a, T: Float> {
    dx: &'a mut [T],
    dconv_state: &'a mut [T],
    partial: &'a mut [T::Acc],
}

impl<T: Float> ConvInputs<'_, T> {
    fn row(&self, entry: usize) -> ConvRow<'_, T> {
        let Sizes { l, d, .. } = self.sizes;
        let before = self.sizes.before();
        ConvRow {
            sizes: self.sizes,
            x: &self.x[entry * l * d..][..l * d],
            conv_state: self
                .conv_state
                .map(|conv_state| &conv_state[entry * before * d..][..before * d]),
            seq_start: self.seq_start.map(|seq_start| &seq_start[entry * l..][..l]),
        }
    }

    /// Rows and ranges of time, in order. A row of length 0 still has one block, for its
    /// `conv_state`.
    fn blocks(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<T> {
        let Sizes { b, l, d, k } = self.sizes;
        let time = TIME.max(k);
        let nothing = (l + k - 1) * d == 0;
        (0..if nothing { 0 } else { b }).flat_map(move |entry| {
            let block = move |i: usize| (entry, i * time..(i * time + time).min(l));
            (0..l.div_ceil(time).max(1)).map(block)
        })
    }

    /// Strips of channels, and the size of the largest.
    fn strips(&self) -> (impl Iterator<Item = Range<usize>> + use<T>, usize) {
        let d = self.sizes.d;
        let strips = (0..d).step_by(STRIP).map(move |first| first..(first + STRIP).min(d));
        (strips, d.min(STRIP))
    }

    /// The taps of some channels, oldest first.
    fn taps(&self, channels: &Range<usize>) -> RowSlices<'_, T::Acc> {
        let Sizes { d, k, .. } = self.sizes;
        (0..k).map(|j| &self.taps.as_slice::<T::Acc>()[j * d..][channels.clone()]).collect()
    }

    /// `pre = bias + Σ taps[i] ⊙ rows[i]`
    fn pre(
        &self,
        channels: &Range<usize>,
        taps: &[&[T::Acc]],
        rows: &[&[T::Acc]],
        pre: &mut [T::Acc],
    ) {
        match &self.bias {
            Some(bias) => pre.copy_from_slice(&bias.as_slice()[channels.clone()]),
            None => pre.fill(T::Acc::ZERO),
        }
        add_taps(pre, taps, rows);
    }

    fn forward(&self, function: Function, y: &mut [T], next: &mut [T]) -> Result<()> {
        let (work, d) = (y.len(), self.sizes.d);
        let mut rest = y;
        let blocks = self.blocks().map(|(entry, times)| {
            let y = cut(&mut rest, times.len() * d);
            (entry, times, y)
        });
        let threads = if work < GRAIN { 1 } else { threads::count() };
        try_for_tasks(blocks, threads, |_, (entry, times, y)| {
            self.forward_block(function, &self.row(entry), times, y)
        })?;
        let state_len = (self.sizes.before() * d).max(1);
        for (entry, next) in next.chunks_mut(state_len).enumerate() {
            self.row(entry).next_state(next);
        }
        Ok(())
    }

    fn forward_block(
        &self,
        function: Function,
        row: &ConvRow<T>,
        times: Range<usize>,
        y: &mut [T],
    ) -> Result<()> {
        let Sizes { d, k, .. } = self.sizes;
        let (strips, width) = self.strips();
        let (mut wide, mut buffer) = (CpuBuffer::EMPTY, scratch::<T::Acc>(width)?);
        for channels in strips {
            let taps = self.taps(&channels);
            let inputs = times.start..times.end + self.sizes.before();
            let rows = widened_rows(inputs.map(|i| row.input(i, &channels)), &mut wide)?;
            for (i, t) in times.clone().enumerate() {
                let unseen = k - row.reach(t + k, k);
                let y = &mut y[i * d..][channels.clone()];
                fill_wide(y, buffer.as_mut_slice(), |y| {
                    self.pre(&channels, &taps[unseen..], &rows[i + unseen..i + k], y);
                    function.value_in_place(y);
                });
            }
        }
        Ok(())
    }

    /// From `dy` and `dnext`, the gradients of both results.
    fn backward(&self, function: Function, dys: [&[T]; 2], grads: Grads<T>) -> Result<()> {
        let Sizes { l, d, k, .. } = self.sizes;
        let before = self.sizes.before();
        let work = self.x.len() * 2;
        let size = (k + 1) * d;
        let mut partial =
            CpuBuffer::scratch(OP, self.blocks().count() * size * size_of::<T::Acc>())?;

        let (mut dx, mut dconv_state) = (grads.dx, grads.dconv_state);
        let mut rest = partial.as_mut_slice::<T::Acc>();
        let blocks = self.blocks().map(|(entry, times)| {
            let has_state = times.start == 0 && self.conv_state.is_some();
            let grads = BlockGrads {
                dx: cut(&mut dx, times.len() * d),
                dconv_state: cut(&mut dconv_state, if has_state { before * d } else { 0 }),
                partial: cut(&mut rest, size),
            };
            (entry, times, grads)
        });
        let threads = if work < GRAIN { 1 } else { threads::count() };
        try_for_tasks(blocks, threads, |_, (entry, times, grads)| {
            let [dy, dnext] = [(dys[0], l), (dys[1], before)]
                .map(|(dy, rows)| &dy[entry * rows * d..][..rows * d]);
            self.backward_block(function, &self.row(entry), [dy, dnext], times, grads)
        })?;

        let mut total = vec![T::Acc::ZERO; size];
        partial
            .as_slice::<T::Acc>()
            .chunks(size.max(1))
            .for_each(|partial| add(&mut total, partial));
        let (dtaps, dbias) = total.split_at(k * d);
        let dweight = (0..d).flat_map(|c| dtaps.iter().skip(c).step_by(d).copied());
        T::narrow(&dweight.collect::<Vec<_>>(), grads.dweight);
        if let Some(out) = grads.dbias {
            T::narrow(dbias, out);
        }
        Ok(())
    }

    fn backward_block(
        &self,
        function: Function,
        row: &ConvRow<T>,
        [dy, dnext]: [&[T]; 2],
        times: Range<usize>,
        grads: BlockGrads<T>,
    ) -> Result<()> {
        let Sizes { l, d, k, .. } = self.sizes;
        let before = self.sizes.before();
        let (strips, width) = self.strips();
        let zeros = |rows: usize| vec![T::Acc::ZERO; rows * width];
        // The results that depend on the inputs of this block.
        let reached = times.start..(times.end + before).min(l);
        let mut wide = CpuBuffer::EMPTY;
        let (mut g, mut sums) = (zeros(reached.len()), zeros(k + 1));
        let [mut wide_dy, mut pre] = [zeros(1), zeros(1)];
        for channels in strips {
            let n = channels.len();
            let taps = self.taps(&channels);
            let inputs = reached.start..reached.end + before;
            let rows = widened_rows(inputs.map(|i| row.input(i, &channels)), &mut wide)?;
            sums.fill(T::Acc::ZERO);
            let (dtaps, dbias) = sums.split_at_mut(k * width);
            for ((i, t), g) in reached.clone().enumerate().zip(g.chunks_mut(width)) {
                let unseen = k - row.reach(t + k, k);
                let rows = &rows[i + unseen..i + k];
                let dy = widened(&dy[t * d..][channels.clone()], &mut wide_dy[..n]);
                let g = &mut g[..n];
                if function.saves() != Saves::Nothing {
                    self.pre(&channels, &taps[unseen..], rows, &mut pre[..n]);
                }
                function.gradient_at(&mut pre[..n], dy, g);
                if times.contains(&t) {
                    let sums = &mut dtaps[unseen * width..];
                    add_tap_grads(sums, width, rows, g);
                    add(dbias, g);
                }
            }
            for (j, sums) in sums.chunks(width).enumerate() {
                grads.partial[j * d..][channels.clone()].copy_from_slice(&sums[..n]);
            }

            let newest_first: Vec<&[T::Acc]> = taps.iter().rev().copied().collect();
            let g: Vec<&[T::Acc]> = g.chunks(width).map(|g| &g[..n]).collect();
            // The gradient of input `i`.
            let mut grad = |i: usize, out: &mut [T]| {
                let (results, in_next_state) = row.results(i);
                let age = results.start + before - i..results.end + before - i;
                let g = &g[results.start - times.start..results.end - times.start];
                fill_wide(out, &mut pre, |sums| {
                    match in_next_state {
                        true => T::widen(&dnext[(i - l) * d..][channels.clone()], sums),
                        false => sums.fill(T::Acc::ZERO),
                    }
                    add_taps(sums, &newest_first[age], g);
                });
            };
            for (i, dx) in grads.dx.chunks_mut(d).enumerate() {
                grad(times.start + before + i, &mut dx[channels.clone()]);
            }
            for (i, dconv_state) in grads.dconv_state.chunks_mut(d).enumerate() {
                grad(i, &mut dconv_state[channels.clone()]);
            }
        }
        Ok(())
    }
}

/// The inputs of one row of the batch.
struct ConvRow<'a, T> {
    sizes: Sizes,
    /// `[l, d]`
    x: &'a [T],
    /// `[k − 1, d]`
    conv_state: Option<&'a [T]>,
    /// `[l]`
    seq_start: Option<&'a [u32]>,
}

impl<T: Float> ConvRow<'_, T> {
    /// Some channels of input `i`; empty before `x` without a `conv_state`.
    fn input(&self, i: usize, channels: &Range<usize>) -> &[T] {
        let d = self.sizes.d;
        match (i.checked_sub(self.sizes.before()), self.conv_state) {
            (Some(t), _) => &self.x[t * d..][channels.clone()],
            (None, Some(conv_state)) => &conv_state[i * d..][channels.clone()],
            (None, None) => &[],
        }
    }

    fn starts_sequence(&self, t: usize) -> bool {
        self.seq_start.is_some_and(|seq_start| seq_start[t] != 0)
    }

    /// How many of the `most` inputs before input `end` exist and belong to the sequence of the
    /// last.
    fn reach(&self, end: usize, most: usize) -> usize {
        for n in 0..most {
            match (end - 1 - n).checked_sub(self.sizes.before()) {
                Some(t) if self.starts_sequence(t) => return n + 1,
                Some(_) => {}
                None => return if self.conv_state.is_some() { most } else { n },
            }
        }
        most
    }

    /// The results that depend on input `i`, and whether it is in the next `conv_state`.
    fn results(&self, i: usize) -> (Range<usize>, bool) {
        let Sizes { l, .. } = self.sizes;
        let first = i.saturating_sub(self.sizes.before());
        for t in first..=i {
            if t == l {
                return (first..l, true);
            }
            // A start at the input itself does not separate it from later results.
            if self.starts_sequence(t) && t + self.sizes.before() > i {
                return (first..t, false);
            }
        }
        (first..i + 1, false)
    }

    /// The next `conv_state`, `[k − 1, d]`: the last inputs; zeros instead of those of an earlier
    /// sequence.
    fn next_state(&self, next: &mut [T]) {
        let Sizes { l, d, .. } = self.sizes;
        let before = self.sizes.before();
        let unseen = before - self.reach(l + before, before);
        for (i, next) in next.chunks_mut(d).enumerate() {
            match i < unseen {
                true => next.fill(T::of_f64(0.0)),
                false => next.copy_from_slice(self.input(l + i, &(0..d))),
            }
        }
    }
}

/// The first `n` elements of what is left.
fn cut<'a, T>(rest: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    rest.split_off_mut(..n).expect("the blocks cover the tensor")
}

/// Rows in the wider type: borrowed if they are stored in it, otherwise converted into `wide`.
fn widened_rows<'a, T: Float>(
    rows: impl Iterator<Item = &'a [T]>,
    wide: &'a mut CpuBuffer,
) -> Result<RowSlices<'a, T::Acc>> {
    let rows: RowSlices<T> = rows.collect();
    if let Some(rows) = rows.iter().map(|row| T::as_acc(row)).collect() {
        return Ok(rows);
    }
    *wide = scratch::<T::Acc>(rows.iter().map(|row| row.len()).sum())?;
    let mut rest = wide.as_mut_slice();
    Ok(rows.into_iter().map(|row| widened(row, cut(&mut rest, row.len()))).collect())
}

/// Rows of channels. Those of a single step, as in decoding, take nothing from the allocator.
type RowSlices<'a, T> = SmallVec<[&'a [T]; 8]>;

vectorized! {
    /// `[d, k]` as `[k, d]`
    fn transpose<I: Isa, A: Real>(weight: &[A], k: usize, taps: &mut [A]) {
        let d = weight.len() / k;
        // Nearly all models have four taps: these are shuffled in registers.
        if k == 4 {
            let (first, rest) = taps.split_at_mut(d);
            let (second, rest) = rest.split_at_mut(d);
            let (third, fourth) = rest.split_at_mut(d);
            let fourth = &mut fourth[..d];
            for (c, weight) in weight.as_chunks::<4>().0[..d].iter().enumerate() {
                (first[c], second[c]) = (weight[0], weight[1]);
                (third[c], fourth[c]) = (weight[2], weight[3]);
            }
            return;
        }
        for (c, weight) in weight.chunks_exact(k).enumerate() {
            for (j, tap) in weight.iter().enumerate() {
                taps[j * d + c] = *tap;
            }
        }
    }

    /// `sums += Σ taps[i] ⊙ rows[i]`
    fn add_taps<I: Isa, A: Real>(sums: &mut [A], taps: &[&[A]], rows: &[&[A]]) {
        let n = sums.len();
        // Four taps, as in Mamba, in one pass. The order of the sum is the same.
        if let ([a, b, c, d], [p, q, r, s]) = (taps, rows) {
            let [a, b, c, d, p, q, r, s] = [a, b, c, d, p, q, r, s].map(|x| &x[..n]);
            for (i, sum) in sums.iter_mut().enumerate() {
                let old = b[i].fma::<I>(q[i], a[i].fma::<I>(p[i], *sum));
                *sum = d[i].fma::<I>(s[i], c[i].fma::<I>(r[i], old));
            }
            return;
        }
        for (tap, row) in taps.iter().zip(rows) {
            for ((sum, tap), x) in sums.iter_mut().zip(*tap).zip(*row) {
                *sum = tap.fma::<I>(*x, *sum);
            }
        }
    }

    /// `sums[i] += g ⊙ rows[i]`, the sums being `width` apart.
    fn add_tap_grads<I: Isa, A: Real>(sums: &mut [A], width: usize, rows: &[&[A]], g: &[A]) {
        for (sums, row) in sums.chunks_mut(width).zip(rows) {
            for ((sum, g), x) in sums.iter_mut().zip(g).zip(*row) {
                *sum = g.fma::<I>(*x, *sum);
            }
        }
    }
}

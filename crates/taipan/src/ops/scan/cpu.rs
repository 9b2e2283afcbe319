//! What forward and backward share on the CPU: the split into tasks, and the layout of the data.
//!
//! A task is a group of neighbouring channels of one row. Within a group, vectors run over
//! channels: [`LANES`] of them are a block, and each state of a block is one array. Values are
//! loaded and stored chunk by chunk, through a [`ChunkBuffer`], in which they are widened and
//! padded to whole blocks.

use std::ops::Range;

use super::discretize::{Method, inverse, rates_of};
use super::{CHUNK, Discretization, Optional, SelectiveScan, Sizes, StepSize};
use crate::cpu::CpuView;
use crate::cpu::isa::vectorized;
use crate::cpu::map::add;
use crate::cpu::prefetch::prefetch_for_later;
use crate::cpu::threads::GRAIN;
use crate::dtype::{Float, Real};

/// Channels of a block.
pub(super) const LANES: usize = 16;

/// One value per channel of a block.
pub(super) type Lanes<A> = [A; LANES];

/// The largest length of a [`ChunkBuffer`], which should stay in the cache.
const CHUNK_BUFFER_LEN: usize = 4096;

/// Enough groups to keep the threads of a large machine busy. In backward each has its own partial
/// sums, so there should not be many more.
const ENOUGH_GROUPS: usize = 32;

/// The inputs of a scan.
pub(super) struct Inputs<'a, T: Float> {
    pub(super) discretization: Discretization,
    pub(super) step: StepSize,
    pub(super) sizes: Sizes,
    pub(super) u: &'a [T],
    pub(super) delta: &'a [T],
    pub(super) a_log: &'a [T::Acc],
    pub(super) b: &'a [T],
    pub(super) c: &'a [T],
    pub(super) d: Option<&'a [T::Acc]>,
    pub(super) delta_bias: Option<&'a [T::Acc]>,
    pub(super) z: Option<&'a [T]>,
    pub(super) initial_state: Option<&'a [T::Acc]>,
    seq_start: Option<&'a [u32]>,
}

impl<'a, T: Float> Inputs<'a, T> {
    pub(super) fn new(scan: &SelectiveScan, views: &[CpuView<'a>]) -> Self {
        let at = |which| scan.index(which).map(|i| &views[i]);
        Inputs {
            discretization: scan.discretization,
            step: scan.step,
            sizes: Sizes::of(&[views[0].spec, views[1].spec, views[2].spec]),
            u: views[0].as_slice(),
            delta: views[1].as_slice(),
            a_log: views[2].as_slice(),
            b: views[3].as_slice(),
            c: views[4].as_slice(),
            d: at(Optional::D).map(CpuView::as_slice),
            delta_bias: at(Optional::DeltaBias).map(CpuView::as_slice),
            z: at(Optional::Z).map(CpuView::as_slice),
            initial_state: at(Optional::InitialState).map(CpuView::as_slice),
            seq_start: at(Optional::SeqStart).map(CpuView::as_slice),
        }
    }

    /// The method of [`discretize`](super::discretize::discretize).
    pub(super) fn method(&self) -> Method {
        match (self.discretization, self.step) {
            (Discretization::Euler, StepSize::Softplus) => Method::EulerDecaying,
            (Discretization::Euler, StepSize::Plain) => Method::Euler,
            (Discretization::ZeroOrderHold, _) => Method::ZeroOrderHold,
        }
    }

    /// The state before the first step of a sequence, `[d, n]`; none if it is zero because a packed
    /// sequence starts there.
    pub(super) fn initial_state_of(&self, sequence: usize) -> Option<&'a [T::Acc]> {
        let Sizes { d, n, .. } = self.sizes;
        let initial = self.initial_state?;
        let resets = self.seq_start(sequence, &(0..1))[0];
        (!resets).then(|| &initial[sequence * d * n..][..d * n])
    }

    /// The steps of a chunk at which a sequence starts.
    pub(super) fn seq_start(&self, sequence: usize, chunk: &Range<usize>) -> [bool; CHUNK] {
        let first = sequence * self.sizes.l + chunk.start;
        let seq_start =
            self.seq_start.map_or(&[][..], |seq_start| &seq_start[first..][..chunk.len()]);
        std::array::from_fn(|t| seq_start.get(t).is_some_and(|start| *start != 0))
    }

    /// Prefetch a group's channels of a chunk of a `[b, l, d]` tensor.
    pub(super) fn prefetch(&self, x: &[T], group: &Group, chunk: Range<usize>) {
        let Sizes { l, d, .. } = self.sizes;
        for t in chunk {
            let at = (group.sequence * l + t) * d;
            prefetch_for_later(&x[at + group.channels.start..at + group.channels.end]);
        }
    }

    /// The rows of a `[b, l, n]` tensor that belong to a chunk.
    pub(super) fn rows(&self, x: &'a [T], sequence: usize, chunk: &Range<usize>) -> &'a [T] {
        let Sizes { l, n, .. } = self.sizes;
        &x[(sequence * l + chunk.start) * n..][..chunk.len() * n]
    }
}

impl Sizes {
    /// The steps of a chunk.
    pub(super) fn chunk(self, chunk: usize) -> Range<usize> {
        chunk * CHUNK..self.l.min((chunk + 1) * CHUNK)
    }

    /// The number of channels of a group (the last of a row may have fewer): enough to be worth a
    /// task, and few enough for a [`ChunkBuffer`].
    pub(super) fn width(self) -> usize {
        let groups = ENOUGH_GROUPS.div_ceil(self.b.max(1));
        let least = GRAIN / (self.l * self.n).max(1);
        let most = CHUNK_BUFFER_LEN / self.buffered_steps() / LANES * LANES;
        self.d.div_ceil(groups).max(least).next_multiple_of(LANES).clamp(LANES, most)
    }

    /// The steps of a [`ChunkBuffer`].
    fn buffered_steps(self) -> usize {
        self.l.clamp(1, CHUNK)
    }

    /// The number of states that all tasks compute.
    pub(super) fn work(self) -> usize {
        self.b * self.l * self.d * self.n
    }

    /// The number of groups of a row.
    pub(super) fn groups(self) -> usize {
        self.d.div_ceil(self.width())
    }

    /// The group of each task.
    pub(super) fn tasks(self) -> impl Iterator<Item = Group> {
        let (width, d) = (self.width(), self.d);
        (0..self.b).flat_map(move |sequence| {
            (0..d)
                .step_by(width)
                .map(move |first| Group { sequence, channels: first..d.min(first + width) })
        })
    }
}

/// Neighbouring channels of one row of the batch.
pub(super) struct Group {
    pub(super) sequence: usize,
    pub(super) channels: Range<usize>,
}

impl Group {
    pub(super) fn blocks(&self) -> usize {
        self.channels.len().div_ceil(LANES)
    }

    /// The channels of a block, counted within the group.
    pub(super) fn block(&self, block: usize) -> Range<usize> {
        block * LANES..self.channels.len().min((block + 1) * LANES)
    }
}

/// Split a `[b, rows, d]` tensor into the columns of each group: for each task, `rows` slices; none
/// if there is no tensor.
pub(super) fn columns<T>(x: Option<&mut [T]>, rows: usize, sizes: Sizes) -> Vec<Vec<&mut [T]>> {
    let (groups, width) = (sizes.groups(), sizes.width());
    let mut tasks: Vec<Vec<&mut [T]>> = Vec::new();
    tasks.resize_with(sizes.b * groups, Vec::new);
    let Some(x) = x else { return tasks };
    tasks.iter_mut().for_each(|task| task.reserve_exact(rows));
    for (row, x) in x.chunks_mut(sizes.d.max(1)).enumerate() {
        for (group, x) in x.chunks_mut(width).enumerate() {
            tasks[row / rows * groups + group].push(x);
        }
    }
    tasks
}

/// A group's channels of a chunk of a `[b, l, d]` tensor: `[steps, blocks]`, padded with zeros.
pub(super) struct ChunkBuffer<A> {
    pub(super) blocks: usize,
    pub(super) lanes: Vec<Lanes<A>>,
}

impl<A: Real> ChunkBuffer<A> {
    pub(super) fn new(sizes: Sizes, group: &Group) -> ChunkBuffer<A> {
        let blocks = group.blocks();
        ChunkBuffer { blocks, lanes: vec![[A::ZERO; LANES]; sizes.buffered_steps() * blocks] }
    }

    /// Load a chunk.
    pub(super) fn load<T: Float<Acc = A>>(
        &mut self,
        x: &[T],
        sizes: Sizes,
        group: &Group,
        chunk: &Range<usize>,
    ) {
        for (t, row) in chunk.clone().zip(self.lanes.chunks_mut(self.blocks)) {
            let at = (group.sequence * sizes.l + t) * sizes.d;
            let x = &x[at + group.channels.start..at + group.channels.end];
            T::widen(x, &mut row.as_flattened_mut()[..x.len()]);
        }
    }

    /// Add `row` to each step.
    pub(super) fn add(&mut self, row: &[Lanes<A>]) {
        for lanes in self.lanes.chunks_mut(self.blocks) {
            add(lanes.as_flattened_mut(), row.as_flattened());
        }
    }

    /// Store a chunk in the columns of a tensor.
    pub(super) fn store<T: Float<Acc = A>>(&self, columns: &mut [&mut [T]]) {
        for (columns, row) in columns.iter_mut().zip(self.lanes.chunks(self.blocks)) {
            T::narrow(&row.as_flattened()[..columns.len()], columns);
        }
    }

    #[inline(always)]
    pub(super) fn at(&self, t: usize, block: usize) -> &Lanes<A> {
        &self.lanes[t * self.blocks + block]
    }

    #[inline(always)]
    pub(super) fn at_mut(&mut self, t: usize, block: usize) -> &mut Lanes<A> {
        &mut self.lanes[t * self.blocks + block]
    }
}

/// A group's channels of a `[d]` tensor, or zeros: `[blocks]`.
pub(super) fn per_channel<A: Real>(x: Option<&[A]>, group: &Group) -> Vec<Lanes<A>> {
    let mut lanes = vec![[A::ZERO; LANES]; group.blocks()];
    if let Some(x) = x {
        let x = &x[group.channels.clone()];
        lanes.as_flattened_mut()[..x.len()].copy_from_slice(x);
    }
    lanes
}

/// A group's channels of a `[…, d, n]` tensor, as `[blocks, n]`, padded with `fill`.
pub(super) fn gather<A: Real>(x: &[A], group: &Group, n: usize, fill: A) -> Vec<Lanes<A>> {
    let mut lanes = vec![[fill; LANES]; group.blocks() * n];
    for (channel, x) in x.chunks(n).take(group.channels.len()).enumerate() {
        for (k, x) in x.iter().enumerate() {
            lanes[channel / LANES * n + k][channel % LANES] = *x;
        }
    }
    lanes
}

/// The inverse of [`gather`].
pub(super) fn scatter<A: Real>(lanes: &[Lanes<A>], n: usize, x: &mut [A]) {
    for (channel, x) in x.chunks_mut(n).enumerate() {
        for (k, x) in x.iter_mut().enumerate() {
            *x = lanes[channel / LANES * n + k][channel % LANES];
        }
    }
}

/// The parameters of a group's channels.
pub(super) struct Channels<A> {
    /// `[blocks, n]`: `A·log₂e`, see [`discretize`](super::discretize).
    pub(super) rates: Vec<Lanes<A>>,
    /// `[blocks, n]`: `1/A`, for zero-order hold.
    inverses: Vec<Lanes<A>>,
    /// `[blocks]`
    d: Vec<Lanes<A>>,
    pub(super) delta_bias: Vec<Lanes<A>>,
}

impl<A: Real> Channels<A> {
    pub(super) fn new<T: Float<Acc = A>>(inputs: &Inputs<T>, group: &Group) -> Channels<A> {
        let n = inputs.sizes.n;
        let a_log = &inputs.a_log[group.channels.start * n..group.channels.end * n];
        let mut rates = gather(a_log, group, n, A::ZERO);
        rates_of(rates.as_flattened_mut());
        let inverses = rates.iter().map(|rates| rates.map(inverse)).collect();
        let (d, delta_bias) = (inputs.d, inputs.delta_bias);
        Channels {
            rates,
            inverses,
            d: per_channel(d, group),
            delta_bias: per_channel(delta_bias, group),
        }
    }
}

/// What forward and backward read of a chunk.
pub(super) struct ChunkInputs<'a, A> {
    /// The number of steps.
    pub(super) steps: usize,
    /// The steps at which a sequence starts.
    pub(super) seq_start: [bool; CHUNK],
    pub(super) u: &'a ChunkBuffer<A>,
    /// Δ
    pub(super) size: &'a ChunkBuffer<A>,
    /// `[steps, n]`
    pub(super) b: &'a [A],
    pub(super) c: &'a [A],
}

impl<'a, A: Real> ChunkInputs<'a, A> {
    /// The chunk of a block.
    pub(super) fn block(&self, block: usize, channels: &'a Channels<A>) -> Chunk<'a, A> {
        let ChunkInputs { steps, seq_start, u, size, b, c } = *self;
        let Channels { rates, inverses, d, .. } = channels;
        let n = rates.len() / d.len();
        let states = block * n..(block + 1) * n;
        let (rates, inverses) = (&rates[states.clone()], &inverses[states]);
        Chunk { steps, seq_start, block, u, size, rates, inverses, b, c, d: d[block] }
    }
}

/// What forward and backward read of a chunk of a block: see [`ChunkInputs`] and [`Channels`].
pub(super) struct Chunk<'a, A> {
    pub(super) steps: usize,
    pub(super) seq_start: [bool; CHUNK],
    pub(super) block: usize,
    pub(super) u: &'a ChunkBuffer<A>,
    pub(super) size: &'a ChunkBuffer<A>,
    /// `[n]`
    pub(super) rates: &'a [Lanes<A>],
    pub(super) inverses: &'a [Lanes<A>],
    pub(super) b: &'a [A],
    pub(super) c: &'a [A],
    pub(super) d: Lanes<A>,
}

impl<A: Real> Chunk<'_, A> {
    pub(super) fn n(&self) -> usize {
        self.rates.len()
    }

    /// Rows of `b` and `c`.
    #[inline(always)]
    pub(super) fn rows(&self, t: usize) -> (&[A], &[A]) {
        let n = self.rates.len();
        (&self.b[t * n..][..n], &self.c[t * n..][..n])
    }
}

/// Turn `delta + delta_bias` into Δ.
pub(super) fn step_sizes<A: Real>(step: StepSize, delta: &mut [A]) {
    if step == StepSize::Softplus {
        softplus(delta);
    }
}

vectorized! {
    fn softplus<I: Isa, A: Real>(x: &mut [A]) {
        for x in x {
            *x = x.softplus::<I>();
        }
    }
}

//! The scan of Mamba-2 and Mamba-3 (state-space duality), and its gradient.
//!
//! `b` is the batch size, `l` the number of steps, `r` the number of ranks, `h` the number of heads,
//! `p` that of channels of a head, `g` that of groups and `n` that of states.

mod backward;
mod cpu;
mod gpu;
mod step;

use std::ops::Range;

use smallvec::smallvec;

#[cfg(test)]
pub(super) use self::gpu::programs;
use crate::autograd::{Op, Saved, Slot, apply};
use crate::error::{Result, ensure};
use crate::kernel::{CpuIo, Few, GpuIo, Kernel, Results, compute};
use crate::ops::concat::concat;
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::{DType, Device};

const OP: &str = "ssd";

/// Rows of a chunk: as many steps as have this many ranks together.
const CHUNK: usize = 64;

/// The arguments of [`ssd`]. `Ssd::new` takes the required ones; the optional ones are public
/// fields.
///
/// | tensor | shape | type |
/// |---|---|---|
/// | `x` | `[b, l, h, p]` or `[b, l, r, h, p]` | any float type |
/// | `k`, `q` | `[b, l, g, n]` or `[b, l, r, g, n]` | the same |
/// | `a`, `scale`, `own_scale` | `[b, l, h]` | f32; f64 if `x` is |
/// | `d` | `[h]` | as `a` |
/// | `initial_state` | `[b, h, p, n]` | as `a` |
/// | `seq_start` | `[b, l]` | u32 |
///
/// `h` is a multiple of `g`: consecutive heads share a group. There are 1 to [`Ssd::MAX_RANKS`]
/// ranks.
#[derive(Clone, Copy, Debug)]
pub struct Ssd<'a> {
    /// The input of each channel.
    pub x: &'a Tensor,
    /// The logarithm of the decay of each step, at most 0.
    pub a: &'a Tensor,
    /// How inputs enter the states; `B` in Mamba-2.
    pub k: &'a Tensor,
    /// How states enter the output; `C` in Mamba-2.
    pub q: &'a Tensor,
    /// A factor of what enters the states; `Δ` in Mamba-2. 1 if absent.
    pub scale: Option<&'a Tensor>,
    /// The same factor where a step sees its own input; `γ` in Mamba-3. `scale` if absent.
    pub own_scale: Option<&'a Tensor>,
    /// How inputs enter the output directly.
    pub d: Option<&'a Tensor>,
    /// The state before the first step; zeros if absent.
    pub initial_state: Option<&'a Tensor>,
    /// For packed sequences: not 0 at the first step of each sequence, where the state is reset to
    /// zero.
    pub seq_start: Option<&'a Tensor>,
}

impl<'a> Ssd<'a> {
    /// The largest number of ranks.
    pub const MAX_RANKS: usize = CHUNK;

    /// Without optional tensors.
    pub fn new(x: &'a Tensor, a: &'a Tensor, k: &'a Tensor, q: &'a Tensor) -> Ssd<'a> {
        Ssd {
            x,
            a,
            k,
            q,
            scale: None,
            own_scale: None,
            d: None,
            initial_state: None,
            seq_start: None,
        }
    }
}

/// The scan of Mamba-2: the output, of the shape of `x`, and the final state `[b, h, p, n]`.
///
/// For each sequence and each head, with a state of `[p, n]`,
///
/// ```text
/// state_t = exp(a_t)·state_{t−1} + scale_t·Σ_r x_t,r ⊗ k_t,r
/// y_t,r   = state_t·q_t,r + d·x_t,r
/// ```
///
/// where, with `own_scale`, `y_t` sees the state with this factor in place of `scale_t`.
///
/// It is the [`selective_scan`](crate::selective_scan) with one decay for all channels of a head. So
/// a chunk of steps is a few matrix products, and states may be larger. Every float input gets its
/// gradient from both results. Time and memory are linear in `l`: the inputs and the state before
/// each chunk of 64 rows are saved for backward.
///
/// A long sequence can be scanned in several calls, each from the final state of the call before.
/// With `seq_start`, each packed sequence is scanned as if it were alone. On a GPU, a scan whose
/// states are too large for one binding is split in this way, by sequences and then by steps.
///
/// ```
/// use taipan::{DType, Device, Ssd, Tensor, ssd};
///
/// let (b, l, h, p, g, n) = (2, 5, 4, 8, 1, 16);
/// let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &Device::Cpu);
/// let x = random(&[b, l, h, p], 1)?.tracked();
/// let a = Tensor::full(&[b, l, h], -0.1, DType::F32, &Device::Cpu)?;
/// let (k, q) = (random(&[b, l, g, n], 2)?, random(&[b, l, g, n], 3)?);
///
/// let (y, final_state) = ssd(&Ssd::new(&x, &a, &k, &q))?;
/// assert_eq!((y.shape(), final_state.shape()), (&[b, l, h, p][..], &[b, h, p, n][..]));
/// let grads = y.sum()?.backward()?;
/// assert_eq!(grads.of(&x)?.shape(), [b, l, h, p]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn ssd(scan: &Ssd) -> Result<(Tensor, Tensor)> {
    let Ssd { x, a, k, q, .. } = *scan;
    let optional = [scan.scale, scan.own_scale, scan.d, scan.initial_state, scan.seq_start];
    let given = optional.map(|tensor| tensor.is_some());
    let inputs: Few<&Tensor> =
        [x, a, k, q].into_iter().chain(optional.into_iter().flatten()).collect();
    let op = ChunkedScan { given };
    if let Device::Gpu(gpu) = x.device() {
        let specs: Vec<&Spec> = inputs.iter().map(|tensor| &tensor.spec).collect();
        op.outputs(&specs)?;
        let most = gpu.limits().max_storage_buffer_binding_size;
        if let Some(split) = Sizes::of(&specs).split(most) {
            return ssd_in_two(scan, split);
        }
    }
    let mut results = apply(op, &inputs)?;
    let final_state = results.swap_remove(1);
    Ok((results.swap_remove(0), final_state))
}

/// Where a scan is cut in two.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Split {
    /// Before this sequence.
    Sequence(usize),
    /// Before this step, the first of a chunk: the second part begins with the final state of the
    /// first.
    Step(usize),
}

/// [`ssd`] of what is too large for one binding of a GPU: in two parts, each of which may be cut
/// again.
fn ssd_in_two(scan: &Ssd, split: Split) -> Result<(Tensor, Tensor)> {
    let (dim, at) = match split {
        Split::Sequence(at) => (0, at),
        Split::Step(at) => (1, at),
    };
    let len = scan.x.shape()[dim];
    let part = |range: Range<usize>, carried: Option<&Tensor>| {
        let cut = |tensor: &Tensor| tensor.slice(dim, range.clone());
        let cut_given = |tensor: Option<&Tensor>| tensor.map(cut).transpose();
        let [scale, own_scale] = [cut_given(scan.scale)?, cut_given(scan.own_scale)?];
        let seq_start = cut_given(scan.seq_start)?;
        let initial_state = match split {
            Split::Sequence(_) => cut_given(scan.initial_state)?,
            Split::Step(_) => carried.or(scan.initial_state).cloned(),
        };
        let (x, a, k, q) = (cut(scan.x)?, cut(scan.a)?, cut(scan.k)?, cut(scan.q)?);
        ssd(&Ssd {
            scale: scale.as_ref(),
            own_scale: own_scale.as_ref(),
            d: scan.d,
            initial_state: initial_state.as_ref(),
            seq_start: seq_start.as_ref(),
            ..Ssd::new(&x, &a, &k, &q)
        })
    };
    let (y, state) = part(0..at, None)?;
    let (later, last) = part(at..len, Some(&state))?;
    let state = match split {
        Split::Sequence(_) => concat(&[&state, &last], 0)?,
        Split::Step(_) => last,
    };
    Ok((concat(&[&y, &later], dim)?, state))
}

/// The optional tensors, in the order of the inputs, after `x`, `a`, `k` and `q`.
#[derive(Clone, Copy, PartialEq)]
enum Optional {
    Scale,
    OwnScale,
    D,
    InitialState,
    SeqStart,
}

/// The op: which optional inputs it has, indexed by [`Optional`].
#[derive(Clone, Copy)]
struct ChunkedScan {
    given: [bool; 5],
}

/// The sizes of a scan.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    b: usize,
    l: usize,
    r: usize,
    h: usize,
    p: usize,
    g: usize,
    n: usize,
}

impl Sizes {
    /// From the shapes of `x` and `k`, which have four or five dimensions.
    fn of(inputs: &[&Spec]) -> Sizes {
        let (x, k) = (inputs[0].shape(), inputs[2].shape());
        let r = if x.len() == 5 { x[2] } else { 1 };
        let [h, p] = *x.last_chunk().expect("checked");
        let [g, n] = *k.last_chunk().expect("checked");
        Sizes { b: x[0], l: x[1], r, h, p, g, n }
    }

    /// Rows of `x`, `k` and `q` of a sequence.
    fn rows(self) -> usize {
        self.l * self.r
    }

    /// Steps of a chunk.
    fn chunk_steps(self) -> usize {
        (CHUNK / self.r).max(1)
    }

    fn chunks(self) -> usize {
        self.l.div_ceil(self.chunk_steps())
    }

    /// The elements of a state.
    fn state(self) -> usize {
        self.p * self.n
    }

    /// Where to cut a scan whose states before the chunks, or whose matrices of the rows of chunks,
    /// in f32, do not fit into a binding of so many bytes. A single chunk is not cut: if it is too
    /// large, its launch says so.
    fn split(self, most: u64) -> Option<Split> {
        let rows = self.chunk_steps() * self.r;
        let elements = self.b * self.chunks() * self.h * self.state().max(rows * rows);
        match self.chunks() {
            _ if (elements * size_of::<f32>()) as u64 <= most => None,
            _ if self.b > 1 => Some(Split::Sequence(self.b / 2)),
            chunks @ 2.. => Some(Split::Step(chunks / 2 * self.chunk_steps())),
            _ => None,
        }
    }
}

impl ChunkedScan {
    /// The index of an optional tensor among the inputs.
    fn index(&self, which: Optional) -> Option<usize> {
        let before = &self.given[..which as usize];
        self.given[which as usize].then(|| 4 + before.iter().filter(|given| **given).count())
    }

    /// How many inputs there are.
    fn inputs(&self) -> usize {
        4 + self.given.iter().filter(|given| **given).count()
    }
}

impl Op for ChunkedScan {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        matches!(slot, Slot::Input(_))
    }

    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        // The saved states come after the two results.
        let states = saved.take_output(2);
        let mut inputs: Vec<&Tensor> = (0..self.inputs()).map(|i| saved.input(i)).collect();
        inputs.extend([&states, &dys[0], &dys[1]]);
        let seq_start = self.index(Optional::SeqStart);
        let floats = (0..self.inputs()).filter(|i| Some(*i) != seq_start);
        let specs = floats.map(|i| saved.specs[i].clone()).collect();
        let cpu = |io: CpuIo| backward::cpu(self, io);
        let gpu = |io: GpuIo| gpu::backward(self, io);
        let grads = compute((OP, "backward"), &inputs, specs, cpu, gpu)?;
        let mut grads: Vec<_> = grads.into_iter().map(Some).collect();
        if seq_start.is_some() {
            grads.push(None);
        }
        Ok(grads)
    }
}

impl Kernel for ChunkedScan {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (dtype, wide) = (inputs[0].dtype(), inputs[0].dtype().wider());
        dtype.ensure_float(OP, "x")?;
        let (x, k) = (inputs[0].shape(), inputs[2].shape());
        ensure!(
            OP,
            matches!(x.len(), 4 | 5),
            "x is {x:?}, expected [b, l, h, p] or [b, l, r, h, p]"
        );
        ensure!(OP, k.len() == x.len(), "k is {k:?}, expected {} dimensions as x", x.len());
        let Sizes { b, l, r, h, p, g, n } = Sizes::of(inputs);
        ensure!(
            OP,
            (1..=Ssd::MAX_RANKS).contains(&r),
            "x has {r} ranks, expected 1 to {}",
            Ssd::MAX_RANKS
        );
        ensure!(
            OP,
            g > 0 && h.is_multiple_of(g),
            "{h} heads and {g} groups, expected a multiple of the groups"
        );
        ensure!(
            OP,
            h > 0 && p > 0 && n > 0,
            "{h} heads of {p} channels with {n} states, expected at least one of each"
        );
        let check = |i: usize, name: &'static str, shape: &[usize], dtype: DType| {
            let found = inputs[i].shape();
            ensure!(OP, found == shape, "{name} is {found:?}, expected {shape:?}");
            inputs[i].dtype().ensure(dtype, OP, name)
        };
        let rows = [&x[..x.len() - 2], &[g, n]].concat();
        check(1, "a", &[b, l, h], wide)?;
        check(2, "k", &rows, dtype)?;
        check(3, "q", &rows, dtype)?;
        let optional: [(Optional, &'static str, &[usize], DType); 5] = [
            (Optional::Scale, "scale", &[b, l, h], wide),
            (Optional::OwnScale, "own_scale", &[b, l, h], wide),
            (Optional::D, "d", &[h], wide),
            (Optional::InitialState, "initial_state", &[b, h, p, n], wide),
            (Optional::SeqStart, "seq_start", &[b, l], DType::U32),
        ];
        for (which, name, shape, dtype) in optional {
            if let Some(i) = self.index(which) {
                check(i, name, shape, dtype)?;
            }
        }
        let (y, final_state) = (inputs[0].clone(), Spec::new(OP, &[b, h, p, n], wide)?);
        saved_states(&y, &final_state)?;
        Ok(smallvec![y, final_state])
    }

    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        vec![saved_states(&outputs[0], &outputs[1]).expect("checked with the outputs")]
    }

    fn cpu(&self, io: CpuIo) -> Result<()> {
        cpu::forward(self, io)
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        gpu::forward(self, io)
    }
}

/// The states before each chunk, `[b, h, chunks, p, n]`, of a scan with these results.
fn saved_states(y: &Spec, final_state: &Spec) -> Result<Spec> {
    let [b, h, p, n] = *final_state.shape().as_array().expect("checked");
    let chunks = Sizes::of(&[y, y, y]).chunks();
    Spec::new(OP, &[b, h, chunks, p, n], final_state.dtype())
}

//! The selective scan (S6), the core of Mamba, and its gradient.
//!
//! `b` is the batch size, `l` the length of the rows, `d` the number of channels and `n` the number
//! of states per channel.

mod backward;
mod cpu;
mod discretize;
mod forward;
mod gpu;

use smallvec::smallvec;

#[cfg(test)]
pub(super) use self::gpu::programs;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply};
use crate::error::{Result, ensure};
use crate::kernel::{CpuIo, Few, GpuIo, Kernel, Results, compute};
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "selective_scan";

/// Steps between two states that are saved for backward, which recomputes those in between.
const CHUNK: usize = 16;

/// The arguments of [`selective_scan`]. `Scan::new` takes the required ones; the optional ones are
/// public fields.
///
/// | tensor | shape | type |
/// |---|---|---|
/// | `u`, `delta`, `z` | `[b, l, d]` | any float type |
/// | `b`, `c` | `[b, l, n]` | the same |
/// | `a_log` | `[d, n]` | f32; f64 if `u` is |
/// | `d`, `delta_bias` | `[d]` | as `a_log` |
/// | `initial_state` | `[b, d, n]` | as `a_log` |
/// | `seq_start` | `[b, l]` | u32 |
///
/// The number `n` of states per channel is 1 to [`Scan::MAX_STATES`].
///
/// The parameters of the recurrence and its state need more than half precision: they are in f32
/// for `u` in f16 or bf16.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The input of each channel.
    pub u: &'a Tensor,
    /// The step size of each channel, before `delta_bias` and `step`.
    pub delta: &'a Tensor,
    /// `A = −exp(a_log)`: how fast states decay.
    pub a_log: &'a Tensor,
    /// How inputs enter the states.
    pub b: &'a Tensor,
    /// How states enter the output.
    pub c: &'a Tensor,
    /// How inputs enter the output directly.
    pub d: Option<&'a Tensor>,
    /// Added to `delta`.
    pub delta_bias: Option<&'a Tensor>,
    /// The gate: outputs are multiplied by `silu(z)`.
    pub z: Option<&'a Tensor>,
    /// The state before the first step; zeros if absent.
    pub initial_state: Option<&'a Tensor>,
    /// For packed sequences: not 0 at the first step of each sequence, where the state is reset to
    /// zero.
    pub seq_start: Option<&'a Tensor>,
    /// How the continuous system becomes a discrete one.
    pub discretization: Discretization,
    /// How `delta` becomes a step size.
    pub step: StepSize,
}

/// How the continuous system `h' = A·h + b·u` becomes a recurrence with steps of size Δ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Discretization {
    /// `b̄ = Δ·b`, as the published Mamba models were trained.
    Euler,
    /// `b̄ = (exp(Δ·A) − 1)/A·b`: exact for an input that is constant during the step.
    ZeroOrderHold,
}

/// How `delta` becomes the step size Δ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepSize {
    /// `Δ = softplus(delta + delta_bias)`
    Softplus,
    /// `Δ = delta + delta_bias`
    Plain,
}

impl<'a> Scan<'a> {
    /// The largest `n`: an `a_log` of `[d, n]` with more states is an error.
    pub const MAX_STATES: usize = 256;

    /// The recurrence of Mamba, by Euler's method and with softplus, without optional tensors.
    pub fn new(
        u: &'a Tensor,
        delta: &'a Tensor,
        a_log: &'a Tensor,
        b: &'a Tensor,
        c: &'a Tensor,
    ) -> Scan<'a> {
        Scan {
            u,
            delta,
            a_log,
            b,
            c,
            d: None,
            delta_bias: None,
            z: None,
            initial_state: None,
            seq_start: None,
            discretization: Discretization::Euler,
            step: StepSize::Softplus,
        }
    }
}

/// The selective scan: the output `[b, l, d]` and the final state `[b, d, n]`.
///
/// For each sequence and each channel, with `A = −exp(a_log)` and
/// `Δ = softplus(delta + delta_bias)`,
///
/// ```text
/// h_t = exp(Δ_t·A)·h_{t−1} + b̄_t·u_t
/// b̄_t = Δ_t·b_t, or (exp(Δ_t·A) − 1)/A·b_t        see Discretization
/// y_t = (Σ_n c_t·h_t + d·u_t)·silu(z_t)
/// ```
///
/// Every float input gets its gradient from both results. Time and memory are linear in `l`: the
/// inputs and one state in 16 are saved for backward.
///
/// A long sequence can be scanned in several calls, each from the final state of the call before.
/// With `seq_start`, each packed sequence is scanned as if it were alone; `initial_state` then
/// belongs to the steps before the first start.
///
/// ```
/// use taipan::{DType, Device, Scan, Tensor, selective_scan};
///
/// let (b, l, d, n) = (2, 5, 4, 3);
/// let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &Device::Cpu);
/// let (u, delta) = (random(&[b, l, d], 1)?.tracked(), random(&[b, l, d], 2)?);
/// let (a_log, skip) = (random(&[d, n], 3)?, random(&[d], 4)?.tracked());
/// let (bs, cs) = (random(&[b, l, n], 5)?, random(&[b, l, n], 6)?);
///
/// let scan = Scan { d: Some(&skip), ..Scan::new(&u, &delta, &a_log, &bs, &cs) };
/// let (y, final_state) = selective_scan(&scan)?;
/// assert_eq!((y.shape(), final_state.shape()), (&[b, l, d][..], &[b, d, n][..]));
/// let grads = y.sum()?.backward()?;
/// assert_eq!(grads.of(&u)?.shape(), [b, l, d]);
/// assert_eq!(grads.of(&skip)?.shape(), [d]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn selective_scan(scan: &Scan) -> Result<(Tensor, Tensor)> {
    let Scan { u, delta, a_log, b, c, discretization, step, .. } = *scan;
    let optional = [scan.d, scan.delta_bias, scan.z, scan.initial_state, scan.seq_start];
    let given = optional.map(|tensor| tensor.is_some());
    let inputs: Few<&Tensor> =
        [u, delta, a_log, b, c].into_iter().chain(optional.into_iter().flatten()).collect();
    let mut results = apply(SelectiveScan { discretization, step, given }, &inputs)?;
    let final_state = results.swap_remove(1);
    Ok((results.swap_remove(0), final_state))
}

/// One step of [`selective_scan`], for decoding: no tensor has the dimension `l`, `initial_state`
/// is the state after the step before, and the result is the output `[b, d]` and the next state.
///
/// ```
/// use taipan::{DType, Device, Scan, Tensor, selective_scan_step};
///
/// let (b, d, n) = (1, 4, 3);
/// let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &Device::Cpu);
/// let (u, delta, a_log) = (random(&[b, d], 1)?, random(&[b, d], 2)?, random(&[d, n], 3)?);
/// let (bs, cs) = (random(&[b, n], 5)?, random(&[b, n], 6)?);
/// let mut state = Tensor::zeros(&[b, d, n], DType::F32, &Device::Cpu)?;
/// for _ in 0..3 {
///     let step = Scan { initial_state: Some(&state), ..Scan::new(&u, &delta, &a_log, &bs, &cs) };
///     let (y, next) = selective_scan_step(&step)?;
///     assert_eq!(y.shape(), [b, d]);
///     state = next;
/// }
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn selective_scan_step(scan: &Scan) -> Result<(Tensor, Tensor)> {
    const OP: &str = "selective_scan_step";
    ensure!(OP, scan.seq_start.is_none(), "seq_start is given, expected none for a single step");
    let with_length = |tensor: &Tensor, name: &str| {
        let &[rows, columns] = tensor.shape() else {
            let found = tensor.shape();
            let why = format!("{name} is {found:?}, expected 2 dimensions");
            return Err(crate::Error::Shape { op: OP, why });
        };
        tensor.reshape(&[rows, 1, columns])
    };
    let [u, delta, b, c] = [
        with_length(scan.u, "u")?,
        with_length(scan.delta, "delta")?,
        with_length(scan.b, "b")?,
        with_length(scan.c, "c")?,
    ];
    let z = scan.z.map(|z| with_length(z, "z")).transpose()?;
    let scan = Scan { u: &u, delta: &delta, b: &b, c: &c, z: z.as_ref(), ..*scan };
    let (y, final_state) = selective_scan(&scan)?;
    Ok((y.reshape(&[u.shape()[0], u.shape()[2]])?, final_state))
}

/// The optional tensors of a scan, in the order of the inputs, after `u`, `delta`, `a_log`, `b` and
/// `c`.
#[derive(Clone, Copy, PartialEq)]
enum Optional {
    D,
    DeltaBias,
    Z,
    InitialState,
    SeqStart,
}

/// The op: which optional inputs it has, and how it discretises.
#[derive(Clone, Copy)]
struct SelectiveScan {
    discretization: Discretization,
    step: StepSize,
    /// Indexed by [`Optional`].
    given: [bool; 5],
}

/// The sizes of a scan.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    l: usize,
    d: usize,
    n: usize,
}

impl Sizes {
    /// From the shapes of `u` and `a_log`, which have been checked.
    fn of(inputs: &[&Spec]) -> Sizes {
        let (u, a) = (inputs[0].shape(), inputs[2].shape());
        Sizes { b: u[0], l: u[1], d: u[2], n: a[1] }
    }

    /// The number of states saved for each row.
    fn chunks(self) -> usize {
        self.l.div_ceil(CHUNK)
    }
}

impl SelectiveScan {
    /// The index of an optional tensor among the inputs.
    fn index(&self, which: Optional) -> Option<usize> {
        let before = &self.given[..which as usize];
        self.given[which as usize].then(|| 5 + before.iter().filter(|given| **given).count())
    }

    /// How many inputs there are.
    fn inputs(&self) -> usize {
        5 + self.given.iter().filter(|given| **given).count()
    }
}

impl Op for SelectiveScan {
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

impl Kernel for SelectiveScan {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (dtype, wide) = (inputs[0].dtype(), inputs[0].dtype().wider());
        dtype.ensure_float(OP, "u")?;
        let (u, a_log) = (inputs[0].shape(), inputs[2].shape());
        ensure!(OP, u.len() == 3, "u is {u:?}, expected [b, l, d]");
        ensure!(OP, a_log.len() == 2, "a_log is {a_log:?}, expected [d, n]");
        let Sizes { b, l, d, n } = Sizes::of(inputs);
        ensure!(
            OP,
            (1..=Scan::MAX_STATES).contains(&n),
            "a_log has {n} states, expected 1 to {}",
            Scan::MAX_STATES
        );
        let check = |i: usize, name: &'static str, shape: &[usize], dtype: DType| {
            let found = inputs[i].shape();
            ensure!(OP, found == shape, "{name} is {found:?}, expected {shape:?}");
            inputs[i].dtype().ensure(dtype, OP, name)
        };
        check(1, "delta", &[b, l, d], dtype)?;
        check(2, "a_log", &[d, n], wide)?;
        check(3, "b", &[b, l, n], dtype)?;
        check(4, "c", &[b, l, n], dtype)?;
        let optional: [(Optional, &'static str, &[usize], DType); 5] = [
            (Optional::D, "d", &[d], wide),
            (Optional::DeltaBias, "delta_bias", &[d], wide),
            (Optional::Z, "z", &[b, l, d], dtype),
            (Optional::InitialState, "initial_state", &[b, d, n], wide),
            (Optional::SeqStart, "seq_start", &[b, l], DType::U32),
        ];
        for (which, name, shape, dtype) in optional {
            if let Some(i) = self.index(which) {
                check(i, name, shape, dtype)?;
            }
        }
        let (y, final_state) = (inputs[0].clone(), Spec::new(OP, &[b, d, n], wide)?);
        saved_states(&y, &final_state)?;
        Ok(smallvec![y, final_state])
    }

    fn saved_specs(&self, outputs: &[Spec]) -> Vec<Spec> {
        vec![saved_states(&outputs[0], &outputs[1]).expect("checked with the outputs")]
    }

    fn cpu(&self, io: CpuIo) -> Result<()> {
        forward::cpu(self, io)
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        gpu::forward(self, io)
    }
}

/// The states before each chunk, `[b, chunks, n, d]`, of a scan with these results.
fn saved_states(y: &Spec, final_state: &Spec) -> Result<Spec> {
    let (&[b, l, d], n) = (y.shape().as_array().expect("checked"), final_state.shape()[2]);
    Spec::new(OP, &[b, l.div_ceil(CHUNK), n, d], final_state.dtype())
}

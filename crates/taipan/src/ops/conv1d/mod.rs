//! Causal depthwise convolution along time, with a state for streaming and packed sequences.
//!
//! Inputs are numbered in the order of time, those of `conv_state` before those of `x`: with
//! `before = k − 1`, input `i` is row `i` of `conv_state`, or row `i − before` of `x`. So `y[t]` is
//! the sum over `j < k` of tap `j` times input `t + j`, and the next `conv_state` has the inputs
//! from `l` on.

mod cpu;
mod gpu;

use smallvec::smallvec;

#[cfg(test)]
pub(super) use self::gpu::programs;
use crate::autograd::{Op, Saved, Slot, apply};
use crate::error::{Error, Result, ensure};
use crate::function::{Activation, Function};
use crate::kernel::{CpuIo, Few, GpuIo, Kernel, Results, compute};
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::terms::Terms;
use crate::{DType, Device};

const OP: &str = "causal_conv1d";

/// The arguments of [`causal_conv1d`]; [`CausalConv1d::new`] takes the two required tensors.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv1d<'a> {
    /// `[b, l, d]`: `l` inputs of `d` channels for each row of the batch.
    pub x: &'a Tensor,
    /// `[d, k]`: `k` taps for each channel, the last for the newest input.
    pub weight: &'a Tensor,
    /// `[d]`
    pub bias: Option<&'a Tensor>,
    /// `[b, k−1, d]`: the inputs before `x`; zeros if absent.
    pub conv_state: Option<&'a Tensor>,
    /// `[b, l]`, u32, for packed sequences: not 0 at the first input of each sequence. Earlier
    /// inputs count as zeros from there on.
    pub seq_start: Option<&'a Tensor>,
    /// Applied to the sums.
    pub activation: Activation,
}

impl<'a> CausalConv1d<'a> {
    /// Without optional tensors and without activation.
    pub fn new(x: &'a Tensor, weight: &'a Tensor) -> CausalConv1d<'a> {
        let activation = Activation::None;
        CausalConv1d { x, weight, bias: None, conv_state: None, seq_start: None, activation }
    }
}

/// Causal depthwise convolution: `y[b,t,c] = φ(bias[c] + Σⱼ weight[c,j]·x[b, t−k+1+j, c])`.
///
/// Returns `y`, `[b, l, d]`, and the next `conv_state`, `[b, k−1, d]`: the last inputs of
/// `conv_state` and `x`. With it, a sequence can be processed in several calls, down to one input
/// at a time.
///
/// A row may contain several packed sequences: `seq_start` marks the first input of each. For each
/// sequence, inputs of earlier ones count as zeros, including those of `conv_state`, and so they do
/// in the next `conv_state`.
///
/// Float tensors have the same type. Sums are accumulated in f32 (f64 for f64), and each result is
/// rounded once. The inputs are saved for backward, which recomputes the sums.
///
/// ```
/// use taipan::{CausalConv1d, Device, Tensor, causal_conv1d};
///
/// let x = Tensor::new(&[1f32, 2.0, 3.0, 4.0], &[1, 4, 1], &Device::Cpu)?;
/// let weight = Tensor::new(&[10f32, 1.0], &[1, 2], &Device::Cpu)?;
/// let (y, _) = causal_conv1d(&CausalConv1d::new(&x, &weight))?;
/// assert_eq!(y.read_blocking::<f32>()?, [1.0, 12.0, 23.0, 34.0]);
///
/// // The same in two calls.
/// let (first, rest) = (x.slice(1, 0..1)?, x.slice(1, 1..4)?);
/// let (_, conv_state) = causal_conv1d(&CausalConv1d::new(&first, &weight))?;
/// let rest = CausalConv1d { conv_state: Some(&conv_state), ..CausalConv1d::new(&rest, &weight) };
/// let (y, _) = causal_conv1d(&rest)?;
/// assert_eq!(y.read_blocking::<f32>()?, [12.0, 23.0, 34.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn causal_conv1d(conv: &CausalConv1d) -> Result<(Tensor, Tensor)> {
    let &CausalConv1d { x, weight, bias, conv_state, seq_start, activation } = conv;
    let mut inputs: Few<&Tensor> = smallvec![x, weight];
    let [bias, conv_state, seq_start] = [bias, conv_state, seq_start].map(|input| {
        inputs.extend(input);
        input.map(|_| inputs.len() - 1)
    });
    let op = Conv1d { function: activation.into(), bias, conv_state, seq_start };
    let mut results = apply(op, &inputs)?.into_iter();
    let mut next = || results.next().expect("the convolution has two results");
    Ok((next(), next()))
}

/// Inputs are `x`, `weight`, and the optional tensors that are given, at these indices.
#[derive(Clone, Copy)]
struct Conv1d {
    function: Function,
    bias: Option<usize>,
    conv_state: Option<usize>,
    seq_start: Option<usize>,
}

/// Rows of the batch, inputs of each, channels, taps.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    l: usize,
    d: usize,
    k: usize,
}

impl Sizes {
    fn of(x: &Spec, weight: &Spec) -> Sizes {
        let ([b, l, d], [_, k]) = (x.shape(), weight.shape()) else {
            unreachable!("the shapes were checked")
        };
        Sizes { b: *b, l: *l, d: *d, k: *k }
    }

    /// The number of inputs before `x`.
    fn before(self) -> usize {
        self.k - 1
    }
}

impl Op for Conv1d {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        matches!(slot, Slot::Input(_))
    }

    /// With `pre` the recomputed sums and `g = dy ⊙ φ'(pre)`: the gradient of an input is the sum
    /// of `weight[j]·g[t]` over the results `t` in which it was multiplied by tap `j`, plus its
    /// gradient in the next `conv_state`; `dweight[c,j] = Σ g[t]·(input t + j)`, `dbias = Σ g`.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let inputs = (0..saved.specs.len()).map(|i| saved.input(i));
        let inputs: Vec<&Tensor> = inputs.chain(dys).collect();
        // On a GPU `dweight` and `dbias` are left in terms, unless these are too many.
        let [x, weight] = [0, 1].map(|i| &saved.specs[i]);
        let partial = self.partial(x, weight);
        let in_terms =
            *dys[0].device() != Device::Cpu && x.len() > 0 && partial.blocks <= Terms::MAX_ROWS;
        let returned = |i: &usize| match Some(*i) {
            Some(1) => !in_terms,
            i => i != self.seq_start && !(in_terms && i == self.bias),
        };
        let mut specs: Results<Spec> =
            (0..saved.specs.len()).filter(returned).map(|i| saved.specs[i].clone()).collect();
        if in_terms {
            specs.insert(1, Spec::new(OP, &[partial.len], DType::F32)?);
        }
        let cpu = |io: CpuIo| cpu::backward(self, io);
        let gpu = |io: GpuIo| gpu::backward(self, io, in_terms);
        let mut grads = compute((OP, "backward"), &inputs, specs, cpu, gpu)?;
        if in_terms {
            let (tensor, rows) = (grads.remove(1), partial.blocks);
            let sums = [Some((1, 0)), self.bias.map(|bias| (bias, partial.dbias))];
            for (i, first) in sums.into_iter().flatten() {
                let (tensor, spec) = (tensor.clone(), saved.specs[i].clone());
                saved.sum_later(i, Terms { tensor, first, rows, spec });
            }
        }
        let mut grads = grads.into_iter();
        let grad = |i: usize| returned(&i).then(|| grads.next()).flatten();
        Ok((0..saved.specs.len()).map(grad).collect())
    }
}

impl Kernel for Conv1d {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (x, weight) = (inputs[0], inputs[1]);
        x.dtype().ensure_float(OP, "the input")?;
        weight.dtype().ensure(x.dtype(), OP, "the weight")?;
        let [b, l, d] = *x.shape() else {
            let why = format!("the input is {:?}, expected [b, l, d]", x.shape());
            return Err(Error::Shape { op: OP, why });
        };
        let k = match *weight.shape() {
            [channels, k] if channels == d && k > 0 => k,
            ref found => {
                let why = format!("the weight is {found:?}, expected [{d}, k] with k of 1 or more");
                return Err(Error::Shape { op: OP, why });
            }
        };
        let ensure_shape = |name: &str, found: &Spec, expected: &[usize]| {
            let found = found.shape();
            ensure!(OP, found == expected, "{name} is {found:?}, expected {expected:?}");
            Ok(())
        };
        if let Some(bias) = self.bias.map(|i| inputs[i]) {
            ensure_shape("bias", bias, &[d])?;
            bias.dtype().ensure(x.dtype(), OP, "bias")?;
        }
        let next = Spec::new(OP, &[b, k - 1, d], x.dtype())?;
        if let Some(conv_state) = self.conv_state.map(|i| inputs[i]) {
            ensure_shape("conv_state", conv_state, next.shape())?;
            conv_state.dtype().ensure(x.dtype(), OP, "conv_state")?;
        }
        if let Some(seq_start) = self.seq_start.map(|i| inputs[i]) {
            ensure_shape("seq_start", seq_start, &[b, l])?;
            seq_start.dtype().ensure(DType::U32, OP, "seq_start")?;
        }
        Ok(smallvec![x.clone(), next])
    }

    fn cpu(&self, io: CpuIo) -> Result<()> {
        cpu::forward(self, io)
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        gpu::forward(self, io)
    }
}

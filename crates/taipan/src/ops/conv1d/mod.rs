//! Causal depthwise convolution along time, with a state for streaming and packed sequences.
//!
//! Inputs are numbered in the order of time, those of `conv_state` before those of `x`: with
//! `before = k − 1`, input `i` is row `i` of `conv_state`, or row `i − before` of `x`. So `y[t]` is
//! the sum over `j < k` of tap `j` times input `t + j`, and the next `conv_state` has the inputs
//! from `l` on.

mod cpu;

use self::cpu::{ConvInputs, Grads};
use super::function::{Activation, Function};
use super::reduce::Folding;
use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply};
use crate::cpu::CpuBuffer;
use crate::dtype::{Float, Real, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{Binding, ELEMENTS, GROUP, GpuBuffer, Launch, Program, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, View, run};
use crate::spec::Spec;
use crate::tensor::Tensor;

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
    let mut inputs = vec![x, weight];
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
        let mut grads = run(&Conv1dGrad(*self), &inputs)?.into_iter().map(Some);
        Ok((0..saved.specs.len())
            .map(|i| if Some(i) == self.seq_start { None } else { grads.next().flatten() })
            .collect())
    }
}

impl Kernel for Conv1d {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
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
        Ok(vec![x.clone(), next])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [y, next] = outputs else { unreachable!("two results") };
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let (y, next) = (y.as_mut_slice(), next.as_mut_slice());
            self.inputs_of::<T>(inputs).forward(self.function, y, next)
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let params = self.params(inputs, STEPS);
        gpu.launch(Launch {
            name: OP,
            program: value_program(self.function, inputs[0].spec.dtype()),
            params,
            inputs: &self.bindings(inputs),
            outputs: &[outputs[0].data.all(), outputs[1].data.all()],
            groups: (params.len as usize).div_ceil(GROUP),
            work: (inputs[0].spec.len() + outputs[1].spec.len()) as u64 * params.k as u64,
        })
    }
}

/// `dx`, `dweight` and, if they exist, `dbias` and `dconv_state`; from the inputs and the gradients
/// of both results.
struct Conv1dGrad(Conv1d);

impl Kernel for Conv1dGrad {
    fn name(&self) -> &'static str {
        OP
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let others = [self.0.bias, self.0.conv_state].into_iter().flatten();
        Ok([0, 1].into_iter().chain(others).map(|i| inputs[i].clone()).collect())
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [inputs @ .., dy, dnext] = inputs else { unreachable!("two results have gradients") };
        let [dx, dweight, others @ ..] = outputs else { unreachable!("two gradients or more") };
        let (dbias, dconv_state) = others.split_at_mut(self.0.bias.is_some() as usize);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let dys = [dy.as_slice(), dnext.as_slice()];
            self.0.inputs_of::<T>(inputs).backward(self.0.function, dys, Grads {
                dx: dx.as_mut_slice(),
                dweight: dweight.as_mut_slice(),
                dbias: dbias.first_mut().map(|dbias| dbias.as_mut_slice()),
                dconv_state: dconv_state.first_mut().map_or(&mut [], |view| view.as_mut_slice()),
            })
        })
    }

    /// First `g` and, for blocks of time, partial sums of `dweight` and `dbias`; then their sums;
    /// then `dx` and `dconv_state`.
    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let [inputs @ .., dy, dnext] = inputs else { unreachable!("two results have gradients") };
        let [dx, dweight, others @ ..] = outputs else { unreachable!("two gradients or more") };
        let Sizes { b, d, k, .. } = Sizes::of(inputs[0].spec, inputs[1].spec);
        let elem = dx.spec.dtype();
        let dbias = self.0.bias.map(|_| &others[0]);
        let dconv_state = self.0.conv_state.and(others.last());
        let params = self.0.params(inputs, PARTIAL_STEPS);
        let bindings = self.0.bindings(inputs);
        let g = gpu.scratch(OP, 4 * dy.spec.len())?;

        if dx.spec.len() == 0 {
            for sums in [Some(dweight), dbias].into_iter().flatten() {
                gpu.fill(OP, sums.data, 0)?;
            }
        } else {
            let blocks = b * params.blocks as usize;
            // [blocks, d, k] and, at the alignment of bindings, [blocks, d].
            let at = (4 * blocks * d * k).next_multiple_of(256);
            let partial = gpu.scratch(OP, at + 4 * blocks * d)?;
            let [x, weight, bias, conv_state, seq_start] = bindings;
            gpu.launch(Launch {
                name: OP,
                program: partial_program(self.0.function, elem),
                params: ConvParams { dbias: (at / 4) as u32, ..params },
                inputs: &[x, weight, bias, conv_state, seq_start, dy.data.all()],
                outputs: &[g.all(), partial.all()],
                groups: (params.len as usize).div_ceil(GROUP),
                work: 2 * dx.spec.len() as u64 * k as u64,
            })?;
            let sum = Folding::sum(OP, DType::F32, elem);
            let window = partial.all().window(0..blocks * d * k, 4);
            sum.launch(gpu, window, [1, blocks, d * k], dweight.data.all())?;
            if let Some(dbias) = dbias {
                let window = partial.all().window(at / 4..at / 4 + blocks * d, 4);
                sum.launch(gpu, window, [1, blocks, d], dbias.data.all())?;
            }
        }

        let no_state = gpu.scratch(OP, 0)?;
        let len = dx.spec.len() + dconv_state.map_or(0, |dconv_state| dconv_state.spec.len());
        let [_, weight, _, _, seq_start] = bindings;
        gpu.launch(Launch {
            name: OP,
            program: input_program(elem),
            params: ConvParams { len: len as u32, ..params },
            inputs: &[g.all(), weight, seq_start, dnext.data.all()],
            outputs: &[
                dx.data.all(),
                dconv_state.map_or(&no_state, |dconv_state| dconv_state.data).all(),
            ],
            groups: len.div_ceil(GROUP),
            work: len as u64 * k as u64,
        })
    }
}

impl Conv1d {
    /// The inputs of all rows of the batch.
    fn inputs_of<'a, T: Float>(&self, inputs: &[View<'a, &'a CpuBuffer>]) -> ConvInputs<'a, T> {
        let sizes = Sizes::of(inputs[0].spec, inputs[1].spec);
        let wide = |view: &View<'a, &'a CpuBuffer>| {
            let mut wide = vec![T::Acc::ZERO; view.spec.len()];
            T::widen(view.as_slice::<T>(), &mut wide);
            wide
        };
        let weight = wide(&inputs[1]);
        let mut taps = vec![T::Acc::ZERO; weight.len()];
        for (c, weight) in weight.chunks(sizes.k).enumerate() {
            for (j, tap) in weight.iter().enumerate() {
                taps[j * sizes.d + c] = *tap;
            }
        }
        ConvInputs {
            sizes,
            x: inputs[0].as_slice(),
            taps,
            bias: self.bias.map(|i| wide(&inputs[i])),
            conv_state: self.conv_state.map(|i| inputs[i].as_slice()),
            seq_start: self.seq_start.map(|i| inputs[i].as_slice()),
        }
    }

    fn params(&self, inputs: &[View<&GpuBuffer>], steps: usize) -> ConvParams {
        let Sizes { b, l, d, k } = Sizes::of(inputs[0].spec, inputs[1].spec);
        let steps = steps.min(MAX_ITERATIONS / k).max(1);
        // A row without inputs still has a `conv_state`.
        let blocks = l.div_ceil(steps).max(1);
        let [len, l, d, k, blocks, steps] =
            [b * blocks * d, l, d, k, blocks, steps].map(|x| x as u32);
        let [bias, conv_state, seq_start] =
            [self.bias, self.conv_state, self.seq_start].map(|slot| slot.is_some() as u32);
        ConvParams { len, l, d, k, blocks, steps, bias, conv_state, seq_start, dbias: 0 }
    }

    /// `x`, `weight`, `bias`, `conv_state`, `seq_start`; `x` in place of absent tensors.
    fn bindings<'a>(&self, inputs: &[View<'a, &'a GpuBuffer>]) -> [Binding<'a>; 5] {
        [Some(0), Some(1), self.bias, self.conv_state, self.seq_start]
            .map(|slot| inputs[slot.unwrap_or(0)].data.all())
    }
}

params! {
    struct ConvParams {
        len: u32,
        l: u32,
        d: u32,
        k: u32,
        blocks: u32,
        steps: u32,
        bias: u32,
        conv_state: u32,
        seq_start: u32,
        dbias: u32,
    }
}

/// Results of one channel that an invocation computes, unless there are too many taps.
const STEPS: usize = 4;

/// The same for an invocation that also computes partial sums of `dweight` and `dbias`.
const PARTIAL_STEPS: usize = 64;

/// The limit of taps times results of an invocation: Mesa's llvmpipe ends loops after 65535
/// iterations, counted over all loops of a kernel.
const MAX_ITERATIONS: usize = 1 << 14;

fn value_program(function: Function, elem: DType) -> Program {
    let source = [include_str!("packed_sequences.wgsl"), include_str!("forward.wgsl"), ELEMENTS];
    function.program::<ConvParams>(&source, &[("Elem", elem)], &[])
}

fn partial_program(function: Function, elem: DType) -> Program {
    let source = [include_str!("packed_sequences.wgsl"), include_str!("partial.wgsl"), ELEMENTS];
    function.program::<ConvParams>(&source, &[("Elem", elem)], &[])
}

fn input_program(elem: DType) -> Program {
    let source = [include_str!("dx.wgsl"), ELEMENTS];
    Program::new::<ConvParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let functions = Activation::ALL.iter().copied().map(Function::from);
    functions
        .flat_map(|f| [value_program(f, elem), partial_program(f, elem)])
        .chain([input_program(elem)])
        .collect()
}

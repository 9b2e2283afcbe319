//! Causal depthwise convolution along time, in pieces of a text or over several texts in a row.
//!
//! Inputs are numbered as time runs through them, those of the window before those of `x`: with
//! `before = k − 1`, input `i` is row `i` of the window, or row `i − before` of `x`. So `y[t]` is made of
//! tap `j` times input `t + j`, for `j < k`, and the next window is inputs `l` and on.

mod cpu;

use self::cpu::{Grads, Texts};
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

/// What [`causal_conv1d`] computes; [`CausalConv1d::new`] has the two tensors it cannot do without.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv1d<'a> {
    /// `[b, l, d]`: of each batch entry, `l` inputs of `d` channels.
    pub x: &'a Tensor,
    /// `[d, k]`: of each channel, `k` taps, the last for the newest input.
    pub weight: &'a Tensor,
    /// `[d]`
    pub bias: Option<&'a Tensor>,
    /// `[b, k−1, d]`: the inputs before `x`; zeros when absent.
    pub window: Option<&'a Tensor>,
    /// `[b, l]`, u32: not 0 where a new text starts. Nothing before that is seen from there on.
    pub starts: Option<&'a Tensor>,
    /// Applied to the sums.
    pub activation: Activation,
}

impl<'a> CausalConv1d<'a> {
    /// Without bias, window, starts and activation.
    pub fn new(x: &'a Tensor, weight: &'a Tensor) -> CausalConv1d<'a> {
        let activation = Activation::None;
        CausalConv1d { x, weight, bias: None, window: None, starts: None, activation }
    }
}

/// Causal depthwise convolution: `y[b,t,c] = φ(bias[c] + Σⱼ weight[c,j]·x[b, t−k+1+j, c])`.
///
/// Returns `y`, `[b, l, d]`, and the window for what follows, `[b, k−1, d]`: the last inputs of
/// `window` and `x`. With it, a text can come in pieces of any length, one input at a time if need be.
///
/// Several texts can stand in one row, one behind the other: `starts` says where each begins, and
/// inputs of the one before count as zeros then, those of the window included. In the new window, too,
/// they are zeros.
///
/// Float tensors have the same type. Sums are kept in f32 (f64 for f64), and each result is rounded
/// once. Backward keeps the inputs and computes the sums again.
///
/// ```
/// use taipan::{CausalConv1d, Device, Tensor, causal_conv1d};
///
/// let x = Tensor::new(&[1f32, 2.0, 3.0, 4.0], &[1, 4, 1], &Device::Cpu)?;
/// let weight = Tensor::new(&[10f32, 1.0], &[1, 2], &Device::Cpu)?;
/// let (y, _) = causal_conv1d(&CausalConv1d::new(&x, &weight))?;
/// assert_eq!(y.read_blocking::<f32>()?, [1.0, 12.0, 23.0, 34.0]);
///
/// // The same in two pieces.
/// let (first, rest) = (x.slice(1, 0..1)?, x.slice(1, 1..4)?);
/// let (_, window) = causal_conv1d(&CausalConv1d::new(&first, &weight))?;
/// let rest = CausalConv1d { window: Some(&window), ..CausalConv1d::new(&rest, &weight) };
/// let (y, _) = causal_conv1d(&rest)?;
/// assert_eq!(y.read_blocking::<f32>()?, [12.0, 23.0, 34.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn causal_conv1d(conv: &CausalConv1d) -> Result<(Tensor, Tensor)> {
    let &CausalConv1d { x, weight, bias, window, starts, activation } = conv;
    let mut inputs = vec![x, weight];
    let [bias, window, starts] = [bias, window, starts].map(|input| {
        inputs.extend(input);
        input.map(|_| inputs.len() - 1)
    });
    let op = Conv1d { function: activation.into(), bias, window, starts };
    let mut results = apply(op, &inputs)?.into_iter();
    let mut next = || results.next().expect("the convolution has two results");
    Ok((next(), next()))
}

/// Inputs are `x`, `weight`, and what is there of the others, at these places.
#[derive(Clone, Copy)]
struct Conv1d {
    function: Function,
    bias: Option<usize>,
    window: Option<usize>,
    starts: Option<usize>,
}

/// Batch entries, inputs of each, channels, taps.
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

    /// Inputs that the first result reaches back to.
    fn before(self) -> usize {
        self.k - 1
    }
}

impl Op for Conv1d {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        matches!(slot, Slot::Input(_))
    }

    /// With `pre` the sums, computed again, and `g = dy ⊙ φ'(pre)`: each input gets `weight[j]·g[t]` of
    /// every result it was tap `j` of, and the gradient of its place in the new window;
    /// `dweight[c,j] = Σ g[t]·(input t + j)`, `dbias = Σ g`.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let inputs = (0..saved.specs.len()).map(|i| saved.input(i));
        let inputs: Vec<&Tensor> = inputs.chain(dys).collect();
        let mut grads = run(&Conv1dGrad(*self), &inputs)?.into_iter().map(Some);
        Ok((0..saved.specs.len())
            .map(|i| if Some(i) == self.starts { None } else { grads.next().flatten() })
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
        if let Some(window) = self.window.map(|i| inputs[i]) {
            ensure_shape("the window", window, next.shape())?;
            window.dtype().ensure(x.dtype(), OP, "the window")?;
        }
        if let Some(starts) = self.starts.map(|i| inputs[i]) {
            ensure_shape("starts", starts, &[b, l])?;
            starts.dtype().ensure(DType::U32, OP, "starts")?;
        }
        Ok(vec![x.clone(), next])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [y, next] = outputs else { unreachable!("two results") };
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            self.texts::<T>(inputs).forward(self.function, y.as_mut_slice(), next.as_mut_slice())
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

/// `dx`, `dweight`, and `dbias` and `dwindow` if these are there; from the inputs and the gradients of
/// both results.
struct Conv1dGrad(Conv1d);

impl Kernel for Conv1dGrad {
    fn name(&self) -> &'static str {
        OP
    }

    fn role(&self) -> &'static str {
        "backward"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let others = [self.0.bias, self.0.window].into_iter().flatten();
        Ok([0, 1].into_iter().chain(others).map(|i| inputs[i].clone()).collect())
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [inputs @ .., dy, dnext] = inputs else { unreachable!("two results have gradients") };
        let [dx, dweight, others @ ..] = outputs else { unreachable!("two gradients or more") };
        let (dbias, dwindow) = others.split_at_mut(self.0.bias.is_some() as usize);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            self.0.texts::<T>(inputs).backward(self.0.function, [dy.as_slice(), dnext.as_slice()], Grads {
                dx: dx.as_mut_slice(),
                dweight: dweight.as_mut_slice(),
                dbias: dbias.first_mut().map(|dbias| dbias.as_mut_slice()),
                dwindow: dwindow.first_mut().map_or(&mut [], |dwindow| dwindow.as_mut_slice()),
            })
        })
    }

    /// First `g` and, for blocks of time, the parts of `dweight` and `dbias`; then the sums of the
    /// parts; then `dx` and `dwindow`.
    fn gpu(&self, GpuIo { gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let [inputs @ .., dy, dnext] = inputs else { unreachable!("two results have gradients") };
        let [dx, dweight, others @ ..] = outputs else { unreachable!("two gradients or more") };
        let Sizes { b, d, k, .. } = Sizes::of(inputs[0].spec, inputs[1].spec);
        let elem = dx.spec.dtype();
        let dbias = self.0.bias.map(|_| &others[0]);
        let dwindow = self.0.window.and(others.last());
        let params = self.0.params(inputs, PARTIAL_STEPS);
        let bindings = self.0.bindings(inputs);
        let g = gpu.scratch(OP, 4 * dy.spec.len())?;

        if dx.spec.len() == 0 {
            for sums in [Some(dweight), dbias].into_iter().flatten() {
                gpu.fill(OP, sums.data, 0)?;
            }
        } else {
            let blocks = b * params.blocks as usize;
            // [blocks, d, k] and, where a binding may begin, [blocks, d].
            let at = (4 * blocks * d * k).next_multiple_of(256);
            let partial = gpu.scratch(OP, at + 4 * blocks * d)?;
            let [x, weight, bias, window, starts] = bindings;
            gpu.launch(Launch {
                name: OP,
                program: partial_program(self.0.function, elem),
                params: ConvParams { dbias: (at / 4) as u32, ..params },
                inputs: &[x, weight, bias, window, starts, dy.data.all()],
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

        let no_window = gpu.scratch(OP, 0)?;
        let len = dx.spec.len() + dwindow.map_or(0, |dwindow| dwindow.spec.len());
        let [_, weight, _, _, starts] = bindings;
        gpu.launch(Launch {
            name: OP,
            program: input_program(elem),
            params: ConvParams { len: len as u32, ..params },
            inputs: &[g.all(), weight, starts, dnext.data.all()],
            outputs: &[dx.data.all(), dwindow.map_or(&no_window, |dwindow| dwindow.data).all()],
            groups: len.div_ceil(GROUP),
            work: len as u64 * k as u64,
        })
    }
}

impl Conv1d {
    /// The inputs of all batch entries.
    fn texts<'a, T: Float>(&self, inputs: &[View<'a, &'a CpuBuffer>]) -> Texts<'a, T> {
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
        Texts {
            sizes,
            x: inputs[0].as_slice(),
            taps,
            bias: self.bias.map(|i| wide(&inputs[i])),
            window: self.window.map(|i| inputs[i].as_slice()),
            starts: self.starts.map(|i| inputs[i].as_slice()),
        }
    }

    fn params(&self, inputs: &[View<&GpuBuffer>], steps: usize) -> ConvParams {
        let Sizes { b, l, d, k } = Sizes::of(inputs[0].spec, inputs[1].spec);
        let steps = steps.min(MOST_LOOPS / k).max(1);
        // An entry without inputs still has a window.
        let blocks = l.div_ceil(steps).max(1);
        let [len, l, d, k, blocks, steps] =
            [b * blocks * d, l, d, k, blocks, steps].map(|x| x as u32);
        let [bias, window, starts] =
            [self.bias, self.window, self.starts].map(|slot| slot.is_some() as u32);
        ConvParams { len, l, d, k, blocks, steps, bias, window, starts, dbias: 0 }
    }

    /// `x`, `weight`, `bias`, `window`, `starts`; another in the place of what is not there.
    fn bindings<'a>(&self, inputs: &[View<'a, &'a GpuBuffer>]) -> [Binding<'a>; 5] {
        [Some(0), Some(1), self.bias, self.window, self.starts]
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
        window: u32,
        starts: u32,
        dbias: u32,
    }
}

/// Results of one channel that an invocation computes, if the taps are not too many.
const STEPS: usize = 4;

/// The same for an invocation that also sums its parts of `dweight` and `dbias`.
const PARTIAL_STEPS: usize = 64;

/// Taps times results, for an invocation: Mesa's llvmpipe ends loops after 65535 rounds, all loops of a
/// kernel taken together.
const MOST_LOOPS: usize = 1 << 14;

fn value_program(function: Function, elem: DType) -> Program {
    let source = [include_str!("text.wgsl"), include_str!("forward.wgsl"), ELEMENTS];
    function.program::<ConvParams>(&source, &[("Elem", elem)], &[])
}

fn partial_program(function: Function, elem: DType) -> Program {
    let source = [include_str!("text.wgsl"), include_str!("partial.wgsl"), ELEMENTS];
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

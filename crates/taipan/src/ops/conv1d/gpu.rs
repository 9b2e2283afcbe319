//! The convolution on a GPU.

use super::{Conv1d, OP, Sizes};
use crate::DType;
use crate::error::Result;
use crate::function::Function;
use crate::gpu::{Binding, ELEMENTS, GpuView, Grid, Launch, Program, params};
use crate::kernel::GpuIo;
use crate::reduction::Reduction;
use crate::spec::Spec;

pub(super) fn forward(conv: &Conv1d, GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
    let params = conv.params(inputs[0].spec, inputs[1].spec, STEPS);
    gpu.launch(Launch {
        name: OP,
        program: value_program(conv.function, inputs[0].spec.dtype()),
        params,
        inputs: &conv.bindings(inputs),
        outputs: &[outputs[0].all(), outputs[1].all()],
        grid: grid(params.len, (inputs[0].spec.len() + outputs[1].spec.len()) * params.k as usize),
    })
}

/// Partial sums of `dweight` and `dbias`: `[blocks, d, k]` and, from element `dbias` on,
/// `[blocks, d]`.
pub(super) struct Partial {
    pub(super) blocks: usize,
    /// At the alignment of bindings.
    pub(super) dbias: usize,
    /// The number of elements.
    pub(super) len: usize,
}

impl Conv1d {
    pub(super) fn partial(&self, x: &Spec, weight: &Spec) -> Partial {
        let Sizes { b, d, k, .. } = Sizes::of(x, weight);
        let blocks = b * self.params(x, weight, PARTIAL_STEPS).blocks as usize;
        let dbias = (blocks * d * k).next_multiple_of(64);
        Partial { blocks, dbias, len: dbias + blocks * d }
    }
}

/// First `g` and, for blocks of time, partial sums of `dweight` and `dbias`; then their sums;
/// then `dx` and `dconv_state`. If `in_terms`, the partial sums are the second output, and
/// `dweight` and `dbias` are none.
pub(super) fn backward(
    conv: &Conv1d,
    GpuIo { gpu, inputs, outputs, .. }: GpuIo,
    in_terms: bool,
) -> Result<()> {
    let [inputs @ .., dy, dnext] = inputs else { unreachable!("two results have gradients") };
    let [dx, sums, others @ ..] = outputs else { unreachable!("two gradients or more") };
    let Sizes { d, k, .. } = Sizes::of(inputs[0].spec, inputs[1].spec);
    let elem = dx.spec.dtype();
    let dbias = conv.bias.filter(|_| !in_terms).map(|_| &others[0]);
    let dconv_state = conv.conv_state.and(others.last());
    let params = conv.params(inputs[0].spec, inputs[1].spec, PARTIAL_STEPS);
    let bindings = conv.bindings(inputs);
    let g = gpu.scratch(OP, 4 * dy.spec.len())?;

    if dx.spec.len() == 0 {
        for sums in [Some(sums), dbias].into_iter().flatten() {
            gpu.fill(OP, sums.data, 0)?;
        }
    } else {
        let Partial { blocks, dbias: at, len } = conv.partial(inputs[0].spec, inputs[1].spec);
        let scratch = gpu.scratch(OP, if in_terms { 0 } else { 4 * len })?;
        let partial = if in_terms { sums.all() } else { scratch.all() };
        let [x, weight, bias, conv_state, seq_start] = bindings;
        gpu.launch(Launch {
            name: OP,
            program: partial_program(conv.function, elem),
            params: ConvParams { dbias: at as u32, ..params },
            inputs: &[x, weight, bias, conv_state, seq_start, dy.all()],
            outputs: &[g.all(), partial],
            grid: grid(params.len, 2 * dx.spec.len() * k),
        })?;
        let sum = |first: usize, columns: usize, to: &GpuView| {
            let window = partial.window(first..first + blocks * columns, 4);
            let sum = Reduction::sum_of_rows(blocks, columns);
            gpu.reduce(OP, sum, (window, DType::F32), to.elements())
        };
        if !in_terms {
            sum(0, d * k, sums)?;
            dbias.map_or(Ok(()), |dbias| sum(at, d, dbias))?;
        }
    }

    let no_state = gpu.scratch(OP, 0)?;
    let len = dx.spec.len() + dconv_state.map_or(0, |dconv_state| dconv_state.spec.len());
    let [_, weight, _, _, seq_start] = bindings;
    gpu.launch(Launch {
        name: OP,
        program: input_program(elem),
        params: ConvParams { len: len as u32, ..params },
        inputs: &[g.all(), weight, seq_start, dnext.all()],
        outputs: &[dx.all(), dconv_state.map_or(&no_state, |dconv_state| dconv_state.data).all()],
        grid: grid(len as u32, len * k),
    })
}

fn grid(len: u32, work: usize) -> Grid {
    Grid { work: work as u64, ..Grid::elements(len as usize) }
}

impl Conv1d {
    fn params(&self, x: &Spec, weight: &Spec, steps: usize) -> ConvParams {
        let Sizes { b, l, d, k } = Sizes::of(x, weight);
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
    fn bindings<'a>(&self, inputs: &[GpuView<'a>]) -> [Binding<'a>; 5] {
        [Some(0), Some(1), self.bias, self.conv_state, self.seq_start]
            .map(|slot| inputs[slot.unwrap_or(0)].all())
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
    let source = [wgsl!("packed_sequences.wgsl"), wgsl!("forward.wgsl"), ELEMENTS];
    function.program::<ConvParams>(&source, &[("Elem", elem)], &[])
}

fn partial_program(function: Function, elem: DType) -> Program {
    let source = [wgsl!("packed_sequences.wgsl"), wgsl!("partial.wgsl"), ELEMENTS];
    function.program::<ConvParams>(&source, &[("Elem", elem)], &[])
}

fn input_program(elem: DType) -> Program {
    let source = [wgsl!("dx.wgsl"), ELEMENTS];
    Program::new::<ConvParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    let functions = crate::Activation::ALL.iter().copied().map(Function::from);
    functions
        .flat_map(|f| [value_program(f, elem), partial_program(f, elem)])
        .chain([input_program(elem)])
        .collect()
}

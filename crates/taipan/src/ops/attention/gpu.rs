//! Attention on a GPU.

use super::{CausalAttention, OP, Sizes};
use crate::DType;
use crate::error::Result;
use crate::gpu::{
    Binding, ELEMENTS, Gpu, GpuBuffer, Grid, LINES, Launch, MATH, Program, kernel_sizes, params,
};
use crate::kernel::GpuIo;

params! {
    struct AttentionParams {
        len: u32, lines: u32, steps: u32, keys: u32, used_keys: u32, key_heads: u32, group: u32,
        rows: u32, channels: u32, position: u32, scale: f32,
    }
}

/// Rows or keys, and channels, that a workgroup computes.
const NEAR: usize = 64;

pub(super) fn forward(op: &CausalAttention, io: GpuIo) -> Result<()> {
    let [q, k, v, seq_start @ ..] = io.inputs else { unreachable!("three inputs") };
    let attention = Context::new(op, &io, seq_start.first().map(|starts| starts.all()))?;
    let Sizes { b, l, hq, .. } = attention.sizes;
    let no_log_sums = io.gpu.scratch(OP, 4 * b * l * hq)?;
    let log_sums = io.outputs.get(1).map_or(&no_log_sums, |log_sums| log_sums.data);
    let inputs = [q.all(), k.all(), v.all(), attention.first()];
    let outputs = [io.outputs[0].all(), log_sums.all()];
    attention.launch(Pass::Forward, &inputs, &outputs)
}

pub(super) fn backward(op: &CausalAttention, io: GpuIo) -> Result<()> {
    let [q, k, v, o, log_sums, dout, seq_start @ ..] = io.inputs else {
        unreachable!("six inputs")
    };
    let attention = Context::new(op, &io, seq_start.first().map(|starts| starts.all()))?;
    let [dq, dk, dv] = io.outputs else { unreachable!("three gradients") };
    let rows = log_sums.spec.len();
    let stats = io.gpu.scratch(OP, 8 * rows)?;
    io.gpu.launch(Launch {
        name: OP,
        program: element_program(wgsl!("stats.wgsl"), attention.elem),
        params: attention.params(rows)?,
        inputs: &[o.all(), dout.all(), log_sums.all()],
        outputs: &[stats.all()],
        grid: Grid { work: q.spec.len() as u64, ..Grid::elements(rows) },
    })?;
    let inputs = [q.all(), k.all(), v.all(), dout.all(), stats.all(), attention.first()];
    attention.launch(Pass::RowsGrad, &inputs, &[dq.all()])?;
    attention.launch(Pass::KeysGrad, &inputs, &[dk.all(), dv.all()])
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    RowsGrad,
    KeysGrad,
}

struct Context<'a> {
    gpu: &'a Gpu,
    sizes: Sizes,
    scale: f32,
    elem: DType,
    /// See first.wgsl.
    first: Option<GpuBuffer>,
    /// Bound in its place.
    none: Binding<'a>,
}

impl<'a> Context<'a> {
    fn new(op: &CausalAttention, io: &GpuIo<'a>, seq_start: Option<Binding>) -> Result<Self> {
        let (q, k) = (&io.inputs[0], &io.inputs[1]);
        let sizes = op.sizes(q.spec, k.spec);
        let scale = op.scale(sizes.d) as f32;
        let (gpu, none) = (io.gpu, q.all());
        let mut context = Context { gpu, sizes, scale, elem: q.spec.dtype(), first: None, none };
        if let Some(seq_start) = seq_start {
            let len = sizes.b * sizes.s;
            let first = gpu.scratch(OP, 4 * len)?;
            gpu.launch(Launch {
                name: OP,
                program: element_program(wgsl!("first.wgsl"), context.elem),
                params: context.params(len)?,
                inputs: &[seq_start],
                outputs: &[first.all()],
                grid: Grid { work: (len * sizes.s / 2) as u64, ..Grid::elements(len) },
            })?;
            context.first = Some(first);
        }
        Ok(context)
    }

    fn first(&self) -> Binding<'_> {
        self.first.as_ref().map_or(self.none, GpuBuffer::all)
    }

    /// For this many elements or workgroups.
    fn params(&self, len: usize) -> Result<AttentionParams> {
        let Sizes { l, s, hk, d, position, .. } = self.sizes;
        let sizes =
            [len, l, s, position + l, hk, self.sizes.group(), self.sizes.rows(), d, position];
        let [len, steps, keys, used_keys, key_heads, group, rows, channels, position] =
            kernel_sizes(OP, sizes)?;
        Ok(AttentionParams {
            len,
            lines: len,
            steps,
            keys,
            used_keys,
            key_heads,
            group,
            rows,
            channels,
            position,
            scale: self.scale,
        })
    }

    fn launch(&self, pass: Pass, inputs: &[Binding], outputs: &[Binding]) -> Result<()> {
        let Sizes { b, hk, s, d, .. } = self.sizes;
        let (lanes, products) = match pass {
            Pass::Forward => (self.sizes.rows(), 2),
            Pass::RowsGrad => (self.sizes.rows(), 3),
            Pass::KeysGrad => (s, 4),
        };
        let groups = b * hk * lanes.div_ceil(NEAR) * d.div_ceil(NEAR);
        self.gpu.launch(Launch {
            name: OP,
            program: program(pass, self.elem, self.first.is_some()),
            params: self.params(groups)?,
            inputs,
            outputs,
            grid: Grid { groups, work: products * self.sizes.work() as u64 },
        })
    }
}

fn program(pass: Pass, elem: DType, packed: bool) -> Program {
    let kernel = match pass {
        Pass::Forward => wgsl!("forward.wgsl"),
        Pass::RowsGrad => wgsl!("grad_inputs.wgsl", "rows_grad.wgsl"),
        Pass::KeysGrad => wgsl!("grad_inputs.wgsl", "keys_grad.wgsl"),
    };
    Program::new::<AttentionParams>(
        &[MATH, wgsl!("tiles.wgsl"), kernel, LINES],
        &[("Elem", elem)],
        &[("PACKED", packed as u32), ("WIDTH", 256)],
    )
}

fn element_program(kernel: &'static str, elem: DType) -> Program {
    Program::new::<AttentionParams>(&[kernel, ELEMENTS], &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    let elements = [wgsl!("stats.wgsl"), wgsl!("first.wgsl")];
    let passes = [Pass::Forward, Pass::RowsGrad, Pass::KeysGrad];
    let passes = passes.into_iter().flat_map(|pass| [false, true].map(|x| program(pass, elem, x)));
    elements.map(|kernel| element_program(kernel, elem)).into_iter().chain(passes).collect()
}

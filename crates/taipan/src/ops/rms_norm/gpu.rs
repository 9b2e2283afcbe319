//! RMS norm on a GPU.

use super::{RmsNorm, row_len, rows};
use crate::DType;
use crate::error::Result;
use crate::gpu::{ELEMENTS, Grid, LINES, Launch, MATH, Program, SUM, WORKGROUP, params, width};
use crate::kernel::GpuIo;
use crate::reduction::Reduction;
use crate::spec::Spec;

params! { struct RmsNormParams { lines: u32, n: u32, add: u32, eps: f32, root_eps: f32 } }
params! { struct GradParams { lines: u32, n: u32, add: u32, split: u32 } }
params! { struct WeightParams { len: u32, rows: u32, n: u32 } }

/// Rows of a partial sum of `dweight`.
const ROWS: usize = 64;

/// The number of partial sums of `dweight`, given the spec of `dy`.
pub(super) fn terms(dy: &Spec) -> usize {
    rows(dy).div_ceil(ROWS)
}

pub(super) fn forward(norm: &RmsNorm, GpuIo { op, gpu, inputs, outputs }: GpuIo) -> Result<()> {
    let (x, n, rows) = (&inputs[0], row_len(inputs[0].spec), rows(inputs[0].spec));
    // Bound in place of absent outputs: a buffer cannot be bound twice for writing.
    let [no_s, no_rstd] = [gpu.scratch(op, 0)?, gpu.scratch(op, 4 * rows)?];
    let residual = inputs.get(2);
    let results = 1 + residual.is_some() as usize;
    let s = residual.map_or(&no_s, |_| outputs[1].data);
    let rstd = outputs.get(results).map_or(&no_rstd, |rstd| rstd.data);
    let stream = residual.unwrap_or(x);
    gpu.launch(Launch {
        name: op,
        program: value_program(x.spec.dtype(), stream.spec.dtype(), width(n)),
        params: RmsNormParams {
            lines: rows as u32,
            n: n as u32,
            add: residual.is_some() as u32,
            eps: norm.eps as f32,
            root_eps: norm.eps.sqrt() as f32,
        },
        inputs: &[x.all(), inputs[1].all(), stream.all()],
        outputs: &[outputs[0].all(), s.all(), rstd.all()],
        grid: Grid::lines(rows, 2 * x.spec.len()),
    })
}

pub(super) fn backward(GpuIo { op, gpu, inputs, outputs }: GpuIo) -> Result<()> {
    let [dy, s, weight, rstd] = [0, 1, 2, 3].map(|i| inputs[i].all());
    let (dweight, ds, dx) = (&outputs[0], &outputs[1], outputs.get(2));
    let (elem, stream) = (inputs[0].spec.dtype(), inputs[1].spec.dtype());
    let (n, rows, upstream) = (row_len(inputs[0].spec), rows(inputs[0].spec), inputs.get(4));
    let no_dx = gpu.scratch(op, 0)?;
    gpu.launch(Launch {
        name: op,
        program: grad_program(elem, stream, width(n)),
        params: GradParams {
            lines: rows as u32,
            n: n as u32,
            add: upstream.is_some() as u32,
            split: dx.is_some() as u32,
        },
        inputs: &[dy, s, weight, rstd, upstream.map_or(s, |upstream| upstream.all())],
        outputs: &[ds.all(), dx.map_or(&no_dx, |dx| dx.data).all()],
        grid: Grid::lines(rows, 3 * rows * n),
    })?;
    if rows == 0 {
        return gpu.fill(op, dweight.data, 0);
    }
    let blocks = rows.div_ceil(ROWS);
    // The partial sums may be the result.
    let is_summed = dweight.spec.len() < blocks * n;
    let partial = gpu.scratch(op, if is_summed { 4 * blocks * n } else { 0 })?;
    gpu.launch(Launch {
        name: op,
        program: weight_program(elem, stream),
        params: WeightParams { len: (blocks * n) as u32, rows: rows as u32, n: n as u32 },
        inputs: &[dy, s, rstd],
        outputs: &[if is_summed { partial.all() } else { dweight.all() }],
        grid: Grid { work: (rows * n) as u64, ..Grid::elements(blocks * n) },
    })?;
    if !is_summed {
        return Ok(());
    }
    let sum = Reduction::sum_of_rows(blocks, n);
    gpu.reduce(op, sum, (partial.all(), DType::F32), dweight.elements())
}

/// `stream` is the type of the residual.
fn value_program(elem: DType, stream: DType, width: u32) -> Program {
    let kernel = wgsl!("rms_norm.wgsl");
    Program::new::<RmsNormParams>(
        &[MATH, wgsl!("partial.wgsl"), WORKGROUP, kernel, LINES],
        &[("Elem", elem), ("Stream", stream)],
        &[("WIDTH", width)],
    )
}

fn grad_program(elem: DType, stream: DType, width: u32) -> Program {
    Program::new::<GradParams>(
        &[SUM, WORKGROUP, wgsl!("grad.wgsl"), LINES],
        &[("Elem", elem), ("Stream", stream)],
        &[("WIDTH", width)],
    )
}

fn weight_program(elem: DType, stream: DType) -> Program {
    Program::new::<WeightParams>(
        &[wgsl!("dweight.wgsl"), ELEMENTS],
        &[("Elem", elem), ("Stream", stream)],
        &[("ROWS", ROWS as u32)],
    )
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    let mut all = Vec::new();
    for stream in [elem, DType::F32] {
        all.push(weight_program(elem, stream));
        for width in crate::gpu::WIDTHS {
            all.extend([value_program(elem, stream, width), grad_program(elem, stream, width)]);
        }
    }
    all
}

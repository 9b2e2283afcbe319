//! RMS norm on a GPU.

use super::{GateOrder, RmsNorm, With, row_len, rows};
use crate::DType;
use crate::error::Result;
use crate::function::{Activation, Function};
use crate::gpu::{ELEMENTS, Grid, LINES, Launch, Params, Program, SUM, WORKGROUP, params, width};
use crate::kernel::GpuIo;
use crate::reduction::Reduction;
use crate::spec::Spec;

params! { struct RmsNormParams { lines: u32, n: u32, groups: u32, eps: f32, root_eps: f32 } }
params! { struct GradParams { lines: u32, n: u32, groups: u32, split: u32 } }
params! { struct WeightParams { len: u32, rows: u32, n: u32, width: u32 } }

/// Whole weights of a partial sum of `dweight`.
const ROWS: usize = 64;

/// The number of partial sums of `dweight`, given the spec of `dy` and the size of the weight.
pub(super) fn terms(dy: &Spec, weight: usize) -> usize {
    dy.len().checked_div(weight).unwrap_or(0).div_ceil(ROWS)
}

pub(super) fn forward(norm: &RmsNorm, GpuIo { op, gpu, inputs, outputs }: GpuIo) -> Result<()> {
    let (x, n, rows) = (&inputs[0], row_len(inputs[0].spec), rows(inputs[0].spec));
    let (weight, other) = norm.optional(&inputs[1..]);
    // Bound in place of absent outputs: a buffer cannot be bound twice for writing.
    let [no_s, no_rstd] = [gpu.scratch(op, 0)?, gpu.scratch(op, 4 * rows)?];
    let results = 1 + (norm.with == With::Residual) as usize;
    let s = if results == 2 { outputs[1].data } else { &no_s };
    let rstd = outputs.get(results).map_or(&no_rstd, |rstd| rstd.data);
    let (weight, other) = (weight.unwrap_or(x), other.unwrap_or(x));
    gpu.launch(Launch {
        name: op,
        program: Variant::of(norm, x.spec.dtype(), other.spec.dtype()).value(width(n)),
        params: RmsNormParams {
            lines: rows as u32,
            n: n as u32,
            groups: weight.spec.len().checked_div(n).unwrap_or(1) as u32,
            eps: norm.eps as f32,
            root_eps: norm.eps.sqrt() as f32,
        },
        inputs: &[x.all(), weight.all(), other.all()],
        outputs: &[outputs[0].all(), s.all(), rstd.all()],
        grid: Grid::lines(rows, 2 * x.spec.len()),
    })
}

pub(super) fn backward(norm: &RmsNorm, GpuIo { op, gpu, inputs, outputs }: GpuIo) -> Result<()> {
    let [dy, s, rstd] = [0, 1, 2].map(|i| inputs[i].all());
    let (weight, other) = norm.optional(&inputs[3..]);
    let (grads, dweight) = outputs.split_at(outputs.len() - norm.weighted as usize);
    let (ds, second) = (&grads[0], grads.get(1));
    let (n, rows) = (row_len(inputs[0].spec), rows(inputs[0].spec));
    let no_second = gpu.scratch(op, 0)?;
    let variant = Variant::of(norm, inputs[0].spec.dtype(), inputs[1].spec.dtype());
    let width_of = weight.map_or(n, |weight| weight.spec.len());
    gpu.launch(Launch {
        name: op,
        program: variant.grad(width(n)),
        params: GradParams {
            lines: rows as u32,
            n: n as u32,
            groups: width_of.checked_div(n).unwrap_or(1) as u32,
            split: second.is_some() as u32,
        },
        inputs: &[
            dy,
            s,
            weight.map_or(dy, |weight| weight.all()),
            rstd,
            other.map_or(s, |other| other.all()),
        ],
        outputs: &[ds.all(), second.map_or(&no_second, |second| second.data).all()],
        grid: Grid::lines(rows, 3 * rows * n),
    })?;
    let Some(dweight) = dweight.first() else { return Ok(()) };
    if rows == 0 {
        return gpu.fill(op, dweight.data, 0);
    }
    let blocks = terms(inputs[0].spec, width_of);
    // The partial sums may be the result.
    let is_summed = dweight.spec.len() < blocks * width_of;
    let partial = gpu.scratch(op, if is_summed { 4 * blocks * width_of } else { 0 })?;
    gpu.launch(Launch {
        name: op,
        program: variant.weight(),
        params: WeightParams {
            len: (blocks * width_of) as u32,
            rows: (rows * n / width_of) as u32,
            n: n as u32,
            width: width_of as u32,
        },
        inputs: &[dy, s, rstd, other.map_or(s, |other| other.all())],
        outputs: &[if is_summed { partial.all() } else { dweight.all() }],
        grid: Grid { work: (rows * n) as u64, ..Grid::elements(blocks * width_of) },
    })?;
    if !is_summed {
        return Ok(());
    }
    let sum = Reduction::sum_of_rows(blocks, width_of);
    gpu.reduce(op, sum, (partial.all(), DType::F32), dweight.elements())
}

/// What programs depend on.
#[derive(Clone, Copy)]
struct Variant {
    elem: DType,
    /// The type of the residual.
    stream: DType,
    weighted: bool,
    with: With,
}

impl Variant {
    fn of(norm: &RmsNorm, elem: DType, stream: DType) -> Variant {
        Variant { elem, stream, weighted: norm.weighted, with: norm.with }
    }

    fn value(self, width: u32) -> Program {
        let kernel = wgsl!("rms_norm.wgsl");
        let source = [wgsl!("partial.wgsl"), WORKGROUP, kernel, LINES];
        self.program::<RmsNormParams>(&source, ("WIDTH", width))
    }

    fn grad(self, width: u32) -> Program {
        let source = [SUM, WORKGROUP, wgsl!("grad.wgsl"), LINES];
        self.program::<GradParams>(&source, ("WIDTH", width))
    }

    fn weight(self) -> Program {
        let source = [wgsl!("dweight.wgsl"), ELEMENTS];
        self.program::<WeightParams>(&source, ("ROWS", ROWS as u32))
    }

    fn program<P: Params>(self, source: &[&'static str], constant: (&'static str, u32)) -> Program {
        let with = match self.with {
            With::Nothing => 0,
            With::Residual => 1,
            With::Gate(GateOrder::GateFirst) => 2,
            With::Gate(GateOrder::NormFirst) => 3,
        };
        let types = [("Elem", self.elem), ("Stream", self.stream)];
        let constants = [constant, ("WEIGHTED", self.weighted as u32), ("WITH", with)];
        let source = [&[wgsl!("with.wgsl")], source].concat();
        Function::from(Activation::Silu).program::<P>(&source, &types, &constants)
    }
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    use crate::gpu::WIDTHS;
    let gates = [GateOrder::GateFirst, GateOrder::NormFirst].map(With::Gate);
    let variants = [With::Nothing].into_iter().chain(gates).flat_map(|with| {
        [false, true].map(|weighted| Variant { elem, stream: elem, weighted, with })
    });
    let residuals = [elem, DType::F32].map(|stream| Variant {
        elem,
        stream,
        weighted: true,
        with: With::Residual,
    });
    variants
        .chain(residuals)
        .flat_map(|variant| {
            let by_width = WIDTHS.iter().flat_map(move |w| [variant.value(*w), variant.grad(*w)]);
            by_width.chain(variant.weighted.then(|| variant.weight()))
        })
        .collect()
}

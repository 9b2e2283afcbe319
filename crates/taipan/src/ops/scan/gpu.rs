//! The scan on a GPU, parallel over channels and, as long as these are few, over time: a sequence is cut
//! into pieces of whole chunks. What each piece makes of no states is computed first, then states are
//! carried across pieces, and then each piece is computed from the states before it. Backward does the
//! same with gradients, from the end.

use super::{CHUNK, Discretization, OP, Optional, SelectiveScan, Sizes, StepSize};
use crate::DType;
use crate::error::{Error, Result};
use crate::gpu::{Binding, ELEMENTS, GROUP, Gpu, GpuBuffer, Launch, Program, Strided, params};
use crate::kernel::View;
use crate::ops::function::{Activation, Function};
use crate::ops::reduce::Folding;
use crate::spec::Spec;

/// Invocations of a workgroup, and channels of an invocation.
const WIDTH: usize = 32;
const VECTOR: usize = 2;

/// The most bytes for parts of `db` and `dc`, which are otherwise computed some rows at a time.
const MOST_PARTS: usize = 16 << 20;

params! {
    struct ScanParams {
        len: u32, b: u32, l: u32, d: u32, n: u32, given: u32,
        chunks: u32, per_piece: u32, all_pieces: u32,
        first_piece: u32, pieces: u32, first_unit: u32, end_unit: u32,
        rows: u32, backwards: u32,
        parts: u32, part_rows: u32, first_row: u32,
    }
}

/// The kernels.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Prepare,
    /// The states behind pieces.
    Ends,
    Carry,
    Output,
    Upstream,
    /// The gradients before pieces.
    Reverse,
    Backward,
    Join,
    GateGrad,
    Finish,
}

/// What a stage's program depends on.
#[derive(Clone, Copy)]
struct Variant {
    elem: DType,
    discretization: Discretization,
    starts: bool,
    /// Steps of a chunk.
    steps: usize,
    /// Invocations of a subgroup, if its invocations work together, or 1.
    share: u32,
}

impl Stage {
    fn program(self, variant: Variant) -> Program {
        let math = include_str!("../../gpu/math.wgsl");
        let (packed, lanes) = (include_str!("packed.wgsl"), include_str!("lanes.wgsl"));
        let forward = include_str!("forward.wgsl");
        let rows = match variant.share {
            1 => include_str!("alone.wgsl"),
            _ => include_str!("subgroups.wgsl"),
        };
        let source: &[&'static str] = match self {
            Stage::Prepare => &[math, packed, include_str!("prepare.wgsl"), ELEMENTS],
            Stage::Ends | Stage::Output => &[packed, lanes, rows, forward],
            Stage::Carry => &[math, packed, include_str!("carry.wgsl"), ELEMENTS],
            Stage::Upstream => &[packed, include_str!("upstream.wgsl"), ELEMENTS],
            Stage::Reverse => &[math, packed, lanes, rows, include_str!("reverse.wgsl")],
            Stage::Backward => &[math, packed, lanes, rows, include_str!("backward.wgsl")],
            Stage::Join => &[include_str!("join.wgsl"), ELEMENTS],
            Stage::GateGrad => &[include_str!("gate_grad.wgsl"), ELEMENTS],
            Stage::Finish => &[packed, include_str!("finish.wgsl"), ELEMENTS],
        };
        let types: &[(&'static str, DType)] = match self {
            Stage::Carry | Stage::Reverse | Stage::Finish => &[],
            _ => &[("Elem", variant.elem)],
        };
        let steps = ("STEPS", variant.steps as u32);
        let (width, vector) = (("WIDTH", WIDTH as u32), ("VECTOR", VECTOR as u32));
        let zero_order =
            ("ZERO_ORDER", (variant.discretization == Discretization::ZeroOrderHold) as u32);
        let starting = ("STARTING", variant.starts as u32);
        let share = ("SHARE", variant.share);
        let walking = [steps, width, vector, zero_order, starting, share];
        let mut consts = match self {
            Stage::Join | Stage::GateGrad => vec![],
            Stage::Prepare | Stage::Carry | Stage::Finish | Stage::Upstream => vec![steps],
            // How inputs are held makes no difference.
            Stage::Reverse => vec![steps, width, vector, ("ZERO_ORDER", 0), starting, share],
            Stage::Ends | Stage::Output | Stage::Backward => walking.to_vec(),
        };
        match self {
            Stage::Ends => consts.push(("OUTPUT", 0)),
            Stage::Output => consts.push(("OUTPUT", 1)),
            _ => {}
        }
        match self {
            Stage::Ends | Stage::Output | Stage::Upstream | Stage::GateGrad => {
                let silu = Function::from(Activation::Silu);
                silu.program::<ScanParams>(source, types, &consts)
            }
            _ => Program::new::<ScanParams>(source, types, &consts),
        }
    }
}

/// A scan on a GPU: what every launch needs.
struct Scanner<'a> {
    gpu: &'a Gpu,
    variant: Variant,
    sizes: Sizes,
    params: ScanParams,
    /// See `packed.wgsl`.
    packed: GpuBuffer,
}

impl<'a> Scanner<'a> {
    /// From the inputs, of which none is empty, for pieces of at most so many chunks.
    fn new(
        scan: &SelectiveScan,
        gpu: &'a Gpu,
        inputs: &[View<&GpuBuffer>],
        variant: Variant,
        longest: usize,
    ) -> Result<Self> {
        let sizes = Sizes::of(&[inputs[0].spec, inputs[1].spec, inputs[2].spec]);
        let (Sizes { b, l, d, n }, chunks) = (sizes, sizes.chunks());
        // No size of the parameters is greater, but for elements of what is bound.
        let len = packed_len(sizes, variant.steps)?;
        let cuts = enough(gpu).div_ceil(b * blocks(d) * WIDTH);
        let per_piece = chunks.div_ceil(cuts).min(longest);
        let pieces = chunks.div_ceil(per_piece) as u32;
        let given = scan.given.iter().rev().fold(0, |bits, &given| bits << 1 | given as u32)
            | ((scan.step == StepSize::Plain) as u32) << 6;
        let params = ScanParams {
            len,
            b: b as u32,
            l: l as u32,
            d: d as u32,
            n: n as u32,
            given,
            chunks: chunks as u32,
            per_piece: per_piece as u32,
            all_pieces: pieces,
            first_piece: 0,
            pieces,
            first_unit: 0,
            end_unit: 0,
            rows: n as u32,
            backwards: 0,
            parts: 0,
            part_rows: 0,
            first_row: 0,
        };
        let packed = scratch(gpu, &[len as usize])?;
        let scanner = Scanner { gpu, variant, sizes, params, packed };
        let absent = inputs[2].data.all();
        let at = |which| scan.index(which).map_or(absent, |i| inputs[i].data.all());
        scanner.elements(
            Stage::Prepare,
            params,
            &[
                inputs[2].data.all(),
                inputs[3].data.all(),
                inputs[4].data.all(),
                at(Optional::D),
                at(Optional::DeltaBias),
                at(Optional::Starts),
            ],
            &[scanner.packed.all()],
        )?;
        Ok(scanner)
    }

    /// Numbers in a buffer of their own.
    fn scratch(&self, shape: &[usize]) -> Result<GpuBuffer> {
        scratch(self.gpu, shape)
    }

    /// Launch a kernel over elements.
    fn elements(
        &self,
        stage: Stage,
        params: ScanParams,
        inputs: &[Binding],
        outputs: &[Binding],
    ) -> Result<()> {
        let len = params.len as usize;
        self.gpu.launch(Launch {
            name: OP,
            program: stage.program(self.variant),
            params,
            inputs,
            outputs,
            groups: len.div_ceil(GROUP),
            work: len as u64,
        })
    }

    /// Launch a kernel that walks through pieces, from the unit `first_unit` on, `units` of them.
    fn walk(
        &self,
        stage: Stage,
        (params, units): (ScanParams, usize),
        inputs: &[Binding],
        outputs: &[Binding],
    ) -> Result<()> {
        let (d, n, steps) = (self.sizes.d, self.sizes.n, params.per_piece as usize * CHUNK);
        self.gpu.launch(Launch {
            name: OP,
            program: stage.program(self.variant),
            params: ScanParams { end_unit: params.first_unit + units as u32, ..params },
            inputs,
            outputs,
            groups: units * blocks(d),
            // About 32 operations for each state at each step.
            work: 32 * (units * steps * d) as u64 * n as u64,
        })
    }

    /// If sequences are cut: where the sums of their step sizes go, `[b, pieces, d]`.
    fn sums(&self) -> Result<Option<GpuBuffer>> {
        let pieces = self.params.all_pieces as usize;
        (pieces > 1).then(|| self.scratch(&[self.sizes.b, pieces, self.sizes.d])).transpose()
    }

    /// Add to what is behind each piece, or before it, what comes through it.
    fn carry(&self, params: ScanParams, sums: &GpuBuffer, states: &GpuBuffer) -> Result<()> {
        let Sizes { b, d, n, .. } = self.sizes;
        let params = ScanParams { len: (b * n * d) as u32, ..params };
        self.elements(Stage::Carry, params, &[self.packed.all(), sums.all()], &[states.all()])
    }
}

/// Numbers in a buffer of their own.
fn scratch(gpu: &Gpu, shape: &[usize]) -> Result<GpuBuffer> {
    gpu.scratch(OP, Spec::new(OP, shape, DType::F32)?.bytes())
}

/// How many numbers are packed: see `packed.wgsl`. Steps are padded to chunks, so that these can be
/// many more than those of the inputs.
fn packed_len(Sizes { b, l, d, n }: Sizes, steps: usize) -> Result<u32> {
    let [b, chunks, d, n, steps] = [b, l.div_ceil(steps), d, n, steps].map(|size| size as u128);
    let len = n * d + 2 * d + b * chunks * (1 + 2 * steps * n);
    u32::try_from(len).map_err(|_| {
        let found = format!("{b} sequences of {l} steps with {n} states take {len} numbers");
        let why = format!("{found}, expected at most {} on a GPU", u32::MAX);
        Error::Shape { op: OP, why }
    })
}

/// Invocations of a subgroup, where kernels may use these, or 1.
fn share(gpu: &Gpu) -> u32 {
    gpu.subgroup_size().filter(|size| (4..=WIDTH as u32).contains(size)).unwrap_or(1)
}

/// Workgroups that share the channels.
fn blocks(d: usize) -> usize {
    d.div_ceil(WIDTH * VECTOR)
}

/// Invocations that keep a GPU busy: as long as there are fewer, sequences are cut. In software a few are
/// enough, and what is cut is computed twice.
fn enough(gpu: &Gpu) -> usize {
    match gpu.info().device_type {
        wgpu::DeviceType::Cpu => 256,
        _ => 1 << 15,
    }
}

pub(super) fn forward(
    scan: &SelectiveScan,
    gpu: &Gpu,
    inputs: &[View<&GpuBuffer>],
    outputs: &[View<&GpuBuffer>],
) -> Result<()> {
    let (y, last) = (&outputs[0], &outputs[1]);
    if y.spec.len() == 0 {
        return match scan.index(Optional::State) {
            Some(state) => copy(gpu, &inputs[state], last),
            None => gpu.fill(OP, last.data, 0),
        };
    }
    let steps = if y.spec.shape()[1] == 1 { 1 } else { CHUNK };
    let variant = Variant {
        elem: y.spec.dtype(),
        discretization: scan.discretization,
        starts: scan.index(Optional::Starts).is_some(),
        steps,
        share: if steps == 1 { 1 } else { share(gpu) },
    };
    let scanner = Scanner::new(scan, gpu, inputs, variant, usize::MAX)?;
    let (Sizes { b, d, n, .. }, chunks) = (scanner.sizes, scanner.sizes.chunks());
    let pieces = scanner.params.all_pieces as usize;
    // States go from chunk to chunk through these.
    let scratch;
    let (kept, keep) = match outputs.get(2) {
        Some(kept) => (kept.data, 1),
        None => {
            scratch = scanner.scratch(&[if chunks > 1 { b } else { 0 }, chunks, n, d])?;
            (&scratch, 0)
        }
    };
    let at = |which, absent| scan.index(which).map_or(absent, |i| inputs[i].data.all());
    let (packed, u) = (scanner.packed.all(), inputs[0].data.all());
    let bound = [packed, u, inputs[1].data.all(), at(Optional::Z, u), at(Optional::State, packed)];
    let params = ScanParams { given: scanner.params.given | keep << 5, ..scanner.params };
    if let Some(sums) = scanner.sums()? {
        let params = ScanParams { pieces: params.pieces - 1, ..params };
        let results = [y.data.all(), sums.all(), kept.all()];
        scanner.walk(Stage::Ends, (params, b * (pieces - 1)), &bound, &results)?;
        scanner.carry(params, &sums, kept)?;
    }
    let results = [y.data.all(), last.data.all(), kept.all()];
    scanner.walk(Stage::Output, (params, b * pieces), &bound, &results)
}

pub(super) fn backward(
    scan: &SelectiveScan,
    gpu: &Gpu,
    inputs: &[View<&GpuBuffer>],
    outputs: &[View<&GpuBuffer>],
) -> Result<()> {
    let [.., kept, dout, dlast] = inputs else { unreachable!("the upstream is behind") };
    let (u, z) = (&inputs[0], scan.index(Optional::Z));
    if u.spec.len() == 0 {
        for output in outputs {
            gpu.fill(OP, output.data, 0)?;
        }
        let dstate = scan.index(Optional::State);
        return dstate.map_or(Ok(()), |i| copy(gpu, dlast, &outputs[i]));
    }
    let variant = Variant {
        elem: u.spec.dtype(),
        discretization: scan.discretization,
        starts: scan.index(Optional::Starts).is_some(),
        steps: CHUNK,
        share: share(gpu),
    };
    let (d, n) = (u.spec.shape()[2], kept.spec.shape()[2]);
    let parts = blocks(d) * WIDTH / variant.share as usize;
    // Chunks whose parts, [2, parts, CHUNK, n] each, are within the bytes.
    let longest = (MOST_PARTS / (2 * CHUNK * DType::F32.size()) / n / parts).max(1);
    let scanner = Scanner::new(scan, gpu, inputs, variant, longest)?;
    let (Sizes { b, l, .. }, chunks) = (scanner.sizes, scanner.sizes.chunks());
    let (packed, rows, len) = (scanner.packed.all(), n + 2, b * l * d);
    let base = ScanParams {
        len: len as u32,
        rows: rows as u32,
        backwards: 1,
        parts: parts as u32,
        ..scanner.params
    };

    // StepSize sizes and dy become ddelta and du in place, in f32.
    let mut wide = Vec::new();
    if variant.elem != DType::F32 {
        wide = vec![scanner.scratch(&[len])?, scanner.scratch(&[len])?];
    }
    let in_place = |i: usize| wide.get(i).unwrap_or(outputs[i].data).all();
    let (du, ddelta) = (in_place(0), in_place(1));
    let carries = scanner.scratch(&[b, chunks * rows + n, d])?;
    let gate = z.map_or(u.data.all(), |z| inputs[z].data.all());
    scanner.elements(
        Stage::Upstream,
        ScanParams { len: (b * l.max(n) * d) as u32, ..base },
        &[packed, inputs[1].data.all(), gate, dout.data.all(), dlast.data.all()],
        &[ddelta, du, carries.all()],
    )?;
    let pieces = base.all_pieces as usize;
    if let Some(sums) = scanner.sums()? {
        let params = ScanParams { first_piece: 1, pieces: base.pieces - 1, ..base };
        let results = [carries.all(), sums.all()];
        scanner.walk(
            Stage::Reverse,
            (params, b * (pieces - 1)),
            &[packed, ddelta, du],
            &results,
        )?;
        scanner.carry(params, &sums, &carries)?;
    }

    let y = scanner.scratch(&[if z.is_some() { len } else { 0 }])?;
    let per_piece = base.per_piece as usize;
    let at_once = (longest / per_piece).max(1);
    let row = |unit: usize| unit / pieces * l + unit % pieces * per_piece * CHUNK;
    let most_rows = (0..b * pieces)
        .step_by(at_once)
        .map(|unit| row((unit + at_once).min(b * pieces)) - row(unit))
        .max();
    let partial = scanner.scratch(&[2, parts, most_rows.unwrap_or(0), n])?;
    for first in (0..b * pieces).step_by(at_once) {
        let end = (first + at_once).min(b * pieces);
        let part_rows = row(end) - row(first);
        let params = ScanParams {
            first_unit: first as u32,
            part_rows: part_rows as u32,
            first_row: row(first) as u32,
            ..base
        };
        scanner.walk(
            Stage::Backward,
            (params, end - first),
            &[packed, u.data.all(), kept.data.all()],
            &[ddelta, du, carries.all(), partial.all(), y.all()],
        )?;
        scanner.elements(
            Stage::Join,
            ScanParams { len: (2 * part_rows * n) as u32, ..params },
            &[partial.all()],
            &[outputs[3].data.all(), outputs[4].data.all()],
        )?;
    }

    if let Some(z) = z {
        let bound = [dout.data.all(), y.all(), inputs[z].data.all()];
        scanner.elements(Stage::GateGrad, base, &bound, &[outputs[z].data.all()])?;
    }
    let narrow = Folding::sum(OP, DType::F32, variant.elem);
    for (wide, output) in wide.iter().zip(outputs) {
        narrow.launch(gpu, wide.all(), [1, 1, len], output.data.all())?;
    }
    let sums = scanner.scratch(&[rows, d])?;
    let sum = Folding::sum(OP, DType::F32, DType::F32);
    sum.launch(gpu, carries.all(), [1, b * chunks, rows * d], sums.all())?;
    // No buffer can be bound twice to be written.
    let optional =
        [Optional::D, Optional::DeltaBias, Optional::State].map(|which| scan.index(which));
    let absent = [scanner.scratch(&[0])?, scanner.scratch(&[0])?, scanner.scratch(&[0])?];
    let [dd, ddelta_bias, dstate] =
        [0, 1, 2].map(|i| optional[i].map_or(absent[i].all(), |output| outputs[output].data.all()));
    scanner.elements(
        Stage::Finish,
        ScanParams { len: (b * n * d) as u32, ..base },
        &[sums.all(), carries.all()],
        &[outputs[2].data.all(), dd, ddelta_bias, dstate],
    )
}

/// All of a tensor.
fn copy(gpu: &Gpu, x: &View<&GpuBuffer>, y: &View<&GpuBuffer>) -> Result<()> {
    gpu.copy(OP, x, y, Strided { dims: vec![[x.spec.len(), 1, 1]], from: 0, to: 0 })
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    let mut all = Vec::new();
    for (discretization, starts) in [Discretization::Euler, Discretization::ZeroOrderHold]
        .into_iter()
        .flat_map(|discretization| [false, true].map(|starts| (discretization, starts)))
    {
        let variant = Variant { elem, discretization, starts, steps: CHUNK, share: 1 };
        let step = Variant { steps: 1, ..variant };
        let subgroups = Variant { share: 8, ..variant };
        all.extend([Stage::Prepare, Stage::Output].map(|stage| stage.program(step)));
        all.push(Stage::Backward.program(subgroups));
        let stages = [
            Stage::Prepare,
            Stage::Ends,
            Stage::Carry,
            Stage::Output,
            Stage::Upstream,
            Stage::Reverse,
            Stage::Backward,
            Stage::Join,
            Stage::GateGrad,
            Stage::Finish,
        ];
        all.extend(stages.map(|stage| stage.program(variant)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of inputs of 2 GiB each, since steps are padded.
    #[test]
    fn more_packed_numbers_than_32_bits_are_refused() {
        let sizes = Sizes { b: 1 << 20, l: 2, d: 1, n: 256 };
        let error = packed_len(sizes, CHUNK).unwrap_err().to_string();
        let found = "1048576 sequences of 2 steps with 256 states take 8590983426 numbers";
        assert_eq!(error, format!("selective_scan: {found}, expected at most 4294967295 on a GPU"));
        let sizes = Sizes { b: 2, l: 17, d: 5, n: 3 };
        assert_eq!(packed_len(sizes, CHUNK), Ok(15 + 10 + 2 * 2 * (1 + 2 * 16 * 3)));
        assert_eq!(packed_len(Sizes { l: 1, ..sizes }, 1), Ok(15 + 10 + 2 * (1 + 2 * 3)));
    }
}

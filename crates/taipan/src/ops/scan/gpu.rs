//! The scan on a GPU, parallel over channels and, where these are too few to fill it, over time: a
//! row is split into segments of whole chunks. A first pass scans each segment from a zero state,
//! the second carries states across segments, and the third scans each segment from the state
//! before it. Backward does the same with gradients, from the end.

use super::{CHUNK, Discretization, OP, Optional, SelectiveScan, Sizes, StepSize};
use crate::DType;
use crate::error::{Error, Result};
use crate::function::{Activation, Function};
use crate::gpu::{
    Binding, ELEMENTS, GROUPS, Gpu, GpuBuffer, GpuView, Grid, Launch, MATH, Program, Strided,
    params,
};
use crate::kernel::GpuIo;
use crate::reduction::Reduction;
use crate::spec::Spec;

/// Invocations of a workgroup: one for each channel.
const WIDTH: usize = 64;

/// The limit of the partial sums of `db` and `dc`: beyond it, they are computed some rows at a
/// time.
const MAX_PARTIAL_BYTES: usize = 16 << 20;

/// The least chunks of a segment on hardware, unless the row is shorter: what is carried from
/// segment to segment is then less than a tenth of what is read and written.
const MIN_CHUNKS: usize = 8;

/// The most states times steps that a workgroup of hardware scans, one after the other: about 30 ms
/// on a slow GPU, whose time for a dispatch is limited.
const MAX_STATE_STEPS: usize = 1 << 18;

/// The most gradients of segments that the last pass of backward sums itself.
const MAX_FINISH_SUMS: usize = 64;

params! {
    struct ScanParams {
        len: u32, b: u32, l: u32, d: u32, n: u32, given: u32,
        chunks: u32, per_segment: u32, all_segments: u32,
        first_segment: u32, segments: u32, first_unit: u32, end_unit: u32,
        rows: u32, backwards: u32,
        teams: u32, partial_chunks: u32, first_chunk: u32, sums: u32,
    }
}

/// The GPU kernels that make up forward and backward.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Prepare,
    /// The state after each segment, from a zero state.
    SegmentEnds,
    Carry,
    Output,
    /// `dz`, from the saved states.
    GateGradScan,
    Upstream,
    /// The gradient before each segment, from a zero gradient.
    Reverse,
    Backward,
    SumPartials,
    /// `dz`, from `y` before its gate.
    GateGrad,
    Finish,
}

/// What a pass's program depends on.
#[derive(Clone, Copy)]
struct Variant {
    elem: DType,
    discretization: Discretization,
    seq_start: bool,
    /// Steps of a chunk.
    steps: usize,
    /// Whether the adapter's own `exp2` is accurate.
    native_exp2: bool,
    /// Whether the adapter computes on the CPU.
    software: bool,
    /// The size of subgroups, if these are used.
    subgroups: Option<u32>,
}

impl Variant {
    fn new(scan: &SelectiveScan, gpu: &Gpu, elem: DType, steps: usize) -> Variant {
        let software = gpu.is_software();
        // SwiftShader, whose subgroups are of 4, is three times as fast without them.
        let usable = |size: &u32| software && steps == CHUNK && (8..=32).contains(size);
        Variant {
            elem,
            discretization: scan.discretization,
            seq_start: scan.index(Optional::SeqStart).is_some(),
            steps,
            native_exp2: gpu.has_accurate_exp2(),
            software,
            subgroups: gpu.subgroup_size().filter(usable),
        }
    }

    /// Invocations whose terms of `db` and `dc` are summed before they are written.
    fn team(self) -> usize {
        self.subgroups.map_or(2 * CHUNK, |size| size as usize)
    }
}

impl Pass {
    fn program(self, variant: Variant) -> Program {
        let (prepared, channels) = (wgsl!("prepared.wgsl"), wgsl!("channels.wgsl"));
        let (rows, sums) = match variant.subgroups {
            Some(_) => (wgsl!("bc_rows_subgroups.wgsl"), wgsl!("team_sums_subgroups.wgsl")),
            None => (wgsl!("bc_rows.wgsl"), wgsl!("team_sums.wgsl")),
        };
        let source: &[&'static str] = match self {
            Pass::Prepare => &[MATH, prepared, wgsl!("prepare.wgsl"), ELEMENTS],
            Pass::SegmentEnds | Pass::Output | Pass::GateGradScan => {
                &[prepared, channels, rows, wgsl!("forward.wgsl"), GROUPS]
            }
            Pass::Carry => &[MATH, prepared, wgsl!("carry.wgsl"), ELEMENTS],
            Pass::Upstream => &[prepared, wgsl!("upstream.wgsl"), ELEMENTS],
            Pass::Reverse => &[MATH, prepared, channels, rows, wgsl!("reverse.wgsl"), GROUPS],
            Pass::Backward => {
                &[MATH, prepared, channels, rows, sums, wgsl!("backward.wgsl"), GROUPS]
            }
            Pass::SumPartials => &[wgsl!("sum_partials.wgsl"), ELEMENTS],
            Pass::GateGrad => &[wgsl!("gate_grad.wgsl"), ELEMENTS],
            Pass::Finish => &[prepared, wgsl!("finish.wgsl"), ELEMENTS],
        };
        let elem = ("Elem", variant.elem);
        let types: &[(&'static str, DType)] = match self {
            Pass::Carry | Pass::Reverse | Pass::Finish => &[],
            Pass::SegmentEnds | Pass::Output => &[elem, ("InitialOrDout", DType::F32)],
            Pass::GateGradScan => &[elem, ("InitialOrDout", variant.elem)],
            _ => &[elem],
        };
        let (steps, width) = (("STEPS", variant.steps as u32), ("WIDTH", WIDTH as u32));
        let zero_order = variant.discretization == Discretization::ZeroOrderHold;
        let scan = [
            steps,
            width,
            ("SEQ_STARTS", variant.seq_start as u32),
            ("NATIVE_EXP2", variant.native_exp2 as u32),
            // Reverse needs ā only, which is the same for both methods.
            ("ZERO_ORDER_HOLD", (zero_order && self != Pass::Reverse) as u32),
        ];
        let team = variant.subgroups.map(|size| ("TEAM", size));
        let scan: Vec<_> = scan.into_iter().chain(team).collect();
        let with = |name, value| [&scan[..], &[(name, value)]].concat();
        let consts = match self {
            Pass::GateGrad => vec![],
            Pass::Prepare | Pass::Carry | Pass::Finish | Pass::Upstream | Pass::SumPartials => {
                vec![steps]
            }
            Pass::Reverse => scan,
            Pass::SegmentEnds => with("OUTPUT", 0),
            Pass::Output => with("OUTPUT", 1),
            Pass::GateGradScan => with("OUTPUT", 2),
            // On hardware there are no registers for y.
            Pass::Backward => with("OUTPUT", variant.software as u32),
        };
        match self {
            Pass::SegmentEnds
            | Pass::Output
            | Pass::GateGradScan
            | Pass::Upstream
            | Pass::GateGrad => {
                let silu = Function::from(Activation::Silu);
                silu.program::<ScanParams>(source, types, &consts)
            }
            _ => Program::new::<ScanParams>(source, types, &consts),
        }
    }
}

/// What every launch of a scan needs.
struct Scanner<'a> {
    gpu: &'a Gpu,
    variant: Variant,
    sizes: Sizes,
    params: ScanParams,
    /// See `prepared.wgsl`.
    prepared: GpuBuffer,
}

impl<'a> Scanner<'a> {
    /// From the inputs, none of which is empty, for segments of at most `longest` chunks.
    fn new(
        scan: &SelectiveScan,
        gpu: &'a Gpu,
        inputs: &[GpuView],
        variant: Variant,
        longest: usize,
    ) -> Result<Self> {
        let sizes = Sizes::of(&[inputs[0].spec, inputs[1].spec, inputs[2].spec]);
        let (Sizes { b, l, d, n }, chunks) = (sizes, sizes.chunks());
        // Checked first: the other sizes are smaller, or the length of a bound buffer.
        let len = prepared_len(sizes, variant.steps)?;
        let split = enough_invocations(gpu).div_ceil(b * blocks(d) * WIDTH);
        let (least, most) = match gpu.is_software() {
            true => (1, longest),
            false => (MIN_CHUNKS.min(chunks), longest.min(MAX_STATE_STEPS / (n * CHUNK))),
        };
        let per_segment = chunks.div_ceil(split).max(least).min(most);
        let segments = chunks.div_ceil(per_segment) as u32;
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
            per_segment: per_segment as u32,
            all_segments: segments,
            first_segment: 0,
            segments,
            first_unit: 0,
            end_unit: 0,
            rows: n as u32,
            backwards: 0,
            teams: 0,
            partial_chunks: 0,
            first_chunk: 0,
            sums: 0,
        };
        let prepared = scratch(gpu, &[len as usize])?;
        let scanner = Scanner { gpu, variant, sizes, params, prepared };
        let absent = inputs[2].all();
        let at = |which| scan.index(which).map_or(absent, |i| inputs[i].all());
        scanner.elements(
            Pass::Prepare,
            params,
            &[
                inputs[2].all(),
                inputs[3].all(),
                inputs[4].all(),
                at(Optional::D),
                at(Optional::DeltaBias),
                at(Optional::SeqStart),
            ],
            &[scanner.prepared.all()],
        )?;
        Ok(scanner)
    }

    /// An f32 buffer.
    fn scratch(&self, shape: &[usize]) -> Result<GpuBuffer> {
        scratch(self.gpu, shape)
    }

    /// Launch a kernel over elements.
    fn elements(
        &self,
        pass: Pass,
        params: ScanParams,
        inputs: &[Binding],
        outputs: &[Binding],
    ) -> Result<()> {
        let len = params.len as usize;
        self.gpu.launch(Launch {
            name: OP,
            program: pass.program(self.variant),
            params,
            inputs,
            outputs,
            grid: Grid::elements(len),
        })
    }

    /// Launch a kernel that scans `units` segments, from `first_unit` on.
    fn launch_scan(
        &self,
        pass: Pass,
        (params, units): (ScanParams, usize),
        inputs: &[Binding],
        outputs: &[Binding],
    ) -> Result<()> {
        let (d, n, steps) = (self.sizes.d, self.sizes.n, params.per_segment as usize * CHUNK);
        self.gpu.launch(Launch {
            name: OP,
            program: pass.program(self.variant),
            params: ScanParams { end_unit: params.first_unit + units as u32, ..params },
            inputs,
            outputs,
            // About 32 operations for each state at each step.
            grid: Grid {
                groups: units * blocks(d),
                work: 32 * (units * steps * d) as u64 * n as u64,
            },
        })
    }

    /// A buffer for the sum of step sizes of each segment, `[b, segments, d]`, if there are
    /// several.
    fn sums(&self) -> Result<Option<GpuBuffer>> {
        let segments = self.params.all_segments as usize;
        (segments > 1).then(|| self.scratch(&[self.sizes.b, segments, self.sizes.d])).transpose()
    }

    /// Carry states, or gradients, across segments.
    fn carry(&self, params: ScanParams, sums: &GpuBuffer, states: &GpuBuffer) -> Result<()> {
        let Sizes { b, d, n, .. } = self.sizes;
        let params = ScanParams { len: (b * n * d) as u32, ..params };
        self.elements(Pass::Carry, params, &[self.prepared.all(), sums.all()], &[states.all()])
    }
}

/// An f32 buffer.
fn scratch(gpu: &Gpu, shape: &[usize]) -> Result<GpuBuffer> {
    gpu.scratch(OP, Spec::new(OP, shape, DType::F32)?.bytes())
}

/// The length of the buffer of `prepared.wgsl`. Steps are padded to whole chunks, so it can be much
/// longer than the inputs.
fn prepared_len(Sizes { b, l, d, n }: Sizes, steps: usize) -> Result<u32> {
    let [b, chunks, d, n, steps] = [b, l.div_ceil(steps), d, n, steps].map(|size| size as u128);
    let len = n * d + 2 * d + b * chunks * (1 + 2 * steps * n);
    u32::try_from(len).map_err(|_| {
        let found = format!("{b} sequences of {l} steps with {n} states take {len} numbers");
        let why = format!("{found}, expected at most {} on a GPU", u32::MAX);
        Error::Shape { op: OP, why }
    })
}

/// The number of workgroups that the channels of a segment take.
fn blocks(d: usize) -> usize {
    d.div_ceil(WIDTH)
}

/// The number of invocations that keeps a GPU busy: with fewer, rows are split into segments. On a
/// software adapter a few are enough, and segments are scanned twice.
fn enough_invocations(gpu: &Gpu) -> usize {
    if gpu.is_software() { 256 } else { 1 << 15 }
}

pub(super) fn forward(
    scan: &SelectiveScan,
    GpuIo { gpu, inputs, outputs, .. }: GpuIo,
) -> Result<()> {
    let (y, final_state) = (&outputs[0], &outputs[1]);
    if y.spec.len() == 0 {
        return match scan.index(Optional::InitialState) {
            Some(state) => copy(gpu, &inputs[state], final_state),
            None => gpu.fill(OP, final_state.data, 0),
        };
    }
    let steps = if y.spec.shape()[1] == 1 { 1 } else { CHUNK };
    let variant = Variant::new(scan, gpu, y.spec.dtype(), steps);
    let scanner = Scanner::new(scan, gpu, inputs, variant, usize::MAX)?;
    let (Sizes { b, d, n, .. }, chunks) = (scanner.sizes, scanner.sizes.chunks());
    let segments = scanner.params.all_segments as usize;
    // Passes the states from chunk to chunk.
    let scratch;
    let (saved, save) = match outputs.get(2) {
        Some(saved) => (saved.data, 1),
        None => {
            scratch = scanner.scratch(&[if chunks > 1 { b } else { 0 }, chunks, n, d])?;
            (&scratch, 0)
        }
    };
    let at = |which, absent| scan.index(which).map_or(absent, |i| inputs[i].all());
    let (prepared, u) = (scanner.prepared.all(), inputs[0].all());
    let bound =
        [prepared, u, inputs[1].all(), at(Optional::Z, u), at(Optional::InitialState, prepared)];
    let params = ScanParams { given: scanner.params.given | save << 5, ..scanner.params };
    if let Some(sums) = scanner.sums()? {
        let params = ScanParams { segments: params.segments - 1, ..params };
        let results = [y.all(), sums.all(), saved.all()];
        scanner.launch_scan(Pass::SegmentEnds, (params, b * (segments - 1)), &bound, &results)?;
        scanner.carry(params, &sums, saved)?;
    }
    let results = [y.all(), final_state.all(), saved.all()];
    scanner.launch_scan(Pass::Output, (params, b * segments), &bound, &results)
}

pub(super) fn backward(
    scan: &SelectiveScan,
    GpuIo { gpu, inputs, outputs, .. }: GpuIo,
) -> Result<()> {
    let [.., saved, dout, dfinal_state] = inputs else {
        unreachable!("saved states and upstreams come last")
    };
    let (u, z) = (&inputs[0], scan.index(Optional::Z));
    if u.spec.len() == 0 {
        for output in outputs {
            gpu.fill(OP, output.data, 0)?;
        }
        let dinitial_state = scan.index(Optional::InitialState);
        return dinitial_state.map_or(Ok(()), |i| copy(gpu, dfinal_state, &outputs[i]));
    }
    let variant = Variant::new(scan, gpu, u.spec.dtype(), CHUNK);
    let (d, n) = (u.spec.shape()[2], saved.spec.shape()[2]);
    let teams = blocks(d) * (WIDTH / variant.team());
    // The number of chunks whose partial sums, [n, teams, 2, CHUNK], are within the limit.
    let longest = (MAX_PARTIAL_BYTES / (2 * CHUNK * DType::F32.size()) / n / teams).max(1);
    let scanner = Scanner::new(scan, gpu, inputs, variant, longest)?;
    let (Sizes { b, l, .. }, chunks) = (scanner.sizes, scanner.sizes.chunks());
    let (prepared, rows, len) = (scanner.prepared.all(), 2 * n + 2, b * l * d);
    let base = ScanParams {
        len: len as u32,
        rows: rows as u32,
        backwards: 1,
        teams: teams as u32,
        ..scanner.params
    };
    let segments = base.all_segments as usize;

    // Step sizes and dy become ddelta and du in place, in f32.
    let mut wide = Vec::new();
    if variant.elem != DType::F32 {
        wide = vec![scanner.scratch(&[len])?, scanner.scratch(&[len])?];
    }
    let in_place = |i: usize| wide.get(i).unwrap_or(outputs[i].data).all();
    let (du, ddelta) = (in_place(0), in_place(1));
    let carries = scanner.scratch(&[b, segments, rows, d])?;
    let gate = z.map_or(prepared, |z| inputs[z].all());
    scanner.elements(
        Pass::Upstream,
        ScanParams { len: (b * l.max(n) * d) as u32, ..base },
        &[prepared, inputs[1].all(), gate, dout.all(), dfinal_state.all()],
        &[ddelta, du, carries.all()],
    )?;
    if let Some(sums) = scanner.sums()? {
        let params = ScanParams { first_segment: 1, segments: base.segments - 1, ..base };
        let results = [carries.all(), sums.all()];
        scanner.launch_scan(
            Pass::Reverse,
            (params, b * (segments - 1)),
            &[prepared, ddelta, du],
            &results,
        )?;
        scanner.carry(params, &sums, &carries)?;
    }

    let per_segment = base.per_segment as usize;
    let at_once = (longest / per_segment).max(1);
    // The first chunk of a unit, counted over all rows.
    let chunk = |unit: usize| unit / segments * chunks + unit % segments * per_segment;
    let units = (0..b * segments).step_by(at_once);
    let ends = units.clone().map(|first| (first, (first + at_once).min(b * segments)));
    let most = ends.clone().map(|(first, end)| chunk(end) - chunk(first)).max();
    let partial = scanner.scratch(&[most.unwrap_or(0), n, teams, 2 * CHUNK])?;
    // Before the gate; hardware has no registers for it.
    let y = scanner.scratch(&[if z.is_some() && variant.software { len } else { 0 }])?;
    for (first, end) in ends {
        let partial_chunks = chunk(end) - chunk(first);
        let params = ScanParams {
            first_unit: first as u32,
            partial_chunks: partial_chunks as u32,
            first_chunk: chunk(first) as u32,
            ..base
        };
        scanner.launch_scan(
            Pass::Backward,
            (params, end - first),
            &[prepared, u.all(), saved.all()],
            &[ddelta, du, carries.all(), partial.all(), y.all()],
        )?;
        scanner.elements(
            Pass::SumPartials,
            ScanParams { len: (partial_chunks * n * 2 * CHUNK) as u32, ..params },
            &[partial.all()],
            &[outputs[3].all(), outputs[4].all()],
        )?;
    }

    if let Some(z) = z {
        let dz = outputs[z].all();
        if variant.software {
            scanner.elements(Pass::GateGrad, base, &[dout.all(), y.all(), gate], &[dz])?;
        } else {
            // y is recomputed: to have it from forward would take as much memory as the output.
            let unused = scanner.scratch(&[0])?;
            scanner.launch_scan(
                Pass::GateGradScan,
                (base, b * segments),
                &[prepared, u.all(), inputs[1].all(), gate, dout.all()],
                &[dz, unused.all(), saved.all()],
            )?;
        }
    }
    for (wide, output) in wide.iter().zip(outputs) {
        let narrow = Reduction::sum_of_rows(1, len);
        gpu.reduce(OP, narrow, (wide.all(), DType::F32), output.elements())?;
    }
    // Few carries are summed by the last pass itself.
    let reduced = scanner.scratch(&[rows, d])?;
    let (sums, count) = match b * segments {
        count @ ..=MAX_FINISH_SUMS => (carries.all(), count),
        count => {
            let sum = Reduction::sum_of_rows(count, rows * d);
            gpu.reduce(OP, sum, (carries.all(), DType::F32), (reduced.all(), DType::F32))?;
            (reduced.all(), 1)
        }
    };
    // A buffer cannot be bound twice for writing: absent outputs get buffers of their own.
    let optional =
        [Optional::D, Optional::DeltaBias, Optional::InitialState].map(|which| scan.index(which));
    let absent = [scanner.scratch(&[0])?, scanner.scratch(&[0])?, scanner.scratch(&[0])?];
    let [dd, ddelta_bias, dinitial_state] =
        [0, 1, 2].map(|i| optional[i].map_or(absent[i].all(), |output| outputs[output].all()));
    scanner.elements(
        Pass::Finish,
        ScanParams { len: (b * n * d) as u32, sums: count as u32, ..base },
        &[sums, carries.all()],
        &[outputs[2].all(), dd, ddelta_bias, dinitial_state],
    )
}

/// Copy a whole tensor.
fn copy(gpu: &Gpu, x: &GpuView, y: &GpuView) -> Result<()> {
    gpu.copy(OP, x, y, Strided { dims: vec![[x.spec.len(), 1, 1]], from: 0, to: 0 })
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    let mut all = Vec::new();
    for (discretization, seq_start) in [Discretization::Euler, Discretization::ZeroOrderHold]
        .into_iter()
        .flat_map(|discretization| [false, true].map(|seq_start| (discretization, seq_start)))
    {
        let passes = [
            Pass::Prepare,
            Pass::SegmentEnds,
            Pass::Carry,
            Pass::Output,
            Pass::GateGradScan,
            Pass::Upstream,
            Pass::Reverse,
            Pass::Backward,
            Pass::SumPartials,
            Pass::GateGrad,
            Pass::Finish,
        ];
        // On GPUs and on the CPU, with and without an accurate `exp2`.
        for (native_exp2, subgroups) in
            [(true, None), (false, None), (true, Some(8)), (false, Some(8))]
        {
            let (steps, software) = (CHUNK, subgroups.is_some());
            let variant = Variant {
                elem,
                discretization,
                seq_start,
                steps,
                native_exp2,
                software,
                subgroups,
            };
            let step = Variant { steps: 1, subgroups: None, ..variant };
            all.extend([Pass::Prepare, Pass::Output].map(|pass| pass.program(step)));
            all.extend(passes.map(|pass| pass.program(variant)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs are 2 GiB each; padding of the steps makes it more than 32 bits.
    #[test]
    fn a_prepared_buffer_beyond_32_bits_is_refused() {
        let sizes = Sizes { b: 1 << 20, l: 2, d: 1, n: 256 };
        let error = prepared_len(sizes, CHUNK).unwrap_err().to_string();
        let found = "1048576 sequences of 2 steps with 256 states take 8590983426 numbers";
        assert_eq!(error, format!("selective_scan: {found}, expected at most 4294967295 on a GPU"));
        let sizes = Sizes { b: 2, l: 17, d: 5, n: 3 };
        assert_eq!(prepared_len(sizes, CHUNK), Ok(15 + 10 + 2 * 2 * (1 + 2 * 16 * 3)));
        assert_eq!(prepared_len(Sizes { l: 1, ..sizes }, 1), Ok(15 + 10 + 2 * (1 + 2 * 3)));
    }
}

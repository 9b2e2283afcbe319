//! The scan on a GPU, parallel over channels and, where these are few, over time: a sequence is cut into
//! pieces of whole chunks. What each piece makes of no states is computed first, then the states are
//! carried across pieces, and then each piece is computed from the states before it. Backward does the same
//! with gradients, from the end.

use super::{CHUNK, Hold, OP, Optional, SelectiveScan, Sizes, Step};
use crate::DType;
use crate::error::Result;
use crate::gpu::{Binding, ELEMENTS, GROUP, Gpu, GpuBuffer, Launch, Program, Strided, params};
use crate::kernel::View;
use crate::ops::function::{self, Activation, Function};
use crate::ops::reduce::Folding;

/// Channels of a workgroup: `WIDTH` times `VECTOR` of `lanes.wgsl`.
const WIDTH: usize = 32;
const VECTOR: usize = 4;

/// Invocations that keep a GPU busy: as long as there are fewer, sequences are cut.
const ENOUGH: usize = 1 << 15;

params! {
    struct ScanParams {
        len: u32, b: u32, l: u32, d: u32, n: u32, given: u32,
        chunks: u32, per_piece: u32, all_pieces: u32,
        first_piece: u32, pieces: u32,
        rows: u32, part: u32, backwards: u32,
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
    GateGrad,
    Finish,
}

/// Which of several programs a stage is.
#[derive(Clone, Copy)]
struct Variant {
    elem: DType,
    hold: Hold,
    starts: bool,
}

impl Stage {
    fn program(self, variant: Variant) -> Program {
        let [math, functions] = function::WGSL;
        let (packed, lanes) = (include_str!("packed.wgsl"), include_str!("lanes.wgsl"));
        let forward = include_str!("forward.wgsl");
        let source: &[&'static str] = match self {
            Stage::Prepare => &[math, packed, include_str!("prepare.wgsl"), ELEMENTS],
            Stage::Ends | Stage::Output => &[math, functions, packed, lanes, forward],
            Stage::Carry => &[math, packed, include_str!("carry.wgsl"), ELEMENTS],
            Stage::Upstream => &[math, functions, packed, include_str!("upstream.wgsl"), ELEMENTS],
            Stage::Reverse => &[math, packed, lanes, include_str!("reverse.wgsl")],
            Stage::Backward => &[math, packed, lanes, include_str!("backward.wgsl")],
            Stage::GateGrad => &[math, functions, include_str!("gate_grad.wgsl"), ELEMENTS],
            Stage::Finish => &[packed, include_str!("finish.wgsl"), ELEMENTS],
        };
        let f32_only = matches!(self, Stage::Carry | Stage::Reverse | Stage::Finish);
        let types = [("Elem", variant.elem)];
        let zero_order = ("ZERO_ORDER", (variant.hold == Hold::ZeroOrder) as u32);
        let starting = ("STARTING", variant.starts as u32);
        let silu = ("FUNCTION", Function::from(Activation::Silu).id());
        let consts: &[(&'static str, u32)] = match self {
            Stage::Prepare | Stage::Carry | Stage::Finish => &[],
            Stage::Upstream | Stage::GateGrad => &[silu],
            Stage::Ends => &[silu, zero_order, starting, ("OUTPUT", 0)],
            Stage::Output => &[silu, zero_order, starting, ("OUTPUT", 1)],
            Stage::Reverse => &[("ZERO_ORDER", 0), starting],
            Stage::Backward => &[zero_order, starting],
        };
        Program::new::<ScanParams>(source, if f32_only { &[] } else { &types }, consts)
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
    /// From the inputs, of which none is empty.
    fn new(scan: &SelectiveScan, gpu: &'a Gpu, inputs: &[View<&GpuBuffer>]) -> Result<Self> {
        let sizes = Sizes::of(&[inputs[0].spec, inputs[1].spec, inputs[2].spec]);
        let (Sizes { b, l, d, n }, chunks) = (sizes, sizes.chunks());
        let lanes = b * d.div_ceil(WIDTH * VECTOR) * WIDTH;
        let enough = std::env::var("ENOUGH").map_or(ENOUGH, |x| x.parse().unwrap());
        let per_piece = chunks.div_ceil(enough.div_ceil(lanes).min(chunks));
        let pieces = chunks.div_ceil(per_piece) as u32;
        let given = scan.given.iter().rev().fold(0, |bits, &given| bits << 1 | given as u32)
            | ((scan.step == Step::Plain) as u32) << 6;
        let params = ScanParams {
            len: (n * d + 2 * d + b * chunks * (1 + 2 * CHUNK * n)) as u32,
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
            rows: n as u32,
            part: 0,
            backwards: 0,
        };
        let starts = scan.index(Optional::Starts).is_some();
        let variant = Variant { elem: inputs[0].spec.dtype(), hold: scan.hold, starts };
        let packed = gpu.scratch(OP, params.len as usize * DType::F32.size())?;
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
    fn scratch(&self, len: usize) -> Result<GpuBuffer> {
        self.gpu.scratch(OP, len * DType::F32.size())
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

    /// Launch a kernel that walks through the pieces from `first` to `end`.
    fn pieces(
        &self,
        stage: Stage,
        params: ScanParams,
        inputs: &[Binding],
        outputs: &[Binding],
    ) -> Result<()> {
        let Sizes { b, l, d, n } = self.sizes;
        self.gpu.launch(Launch {
            name: OP,
            program: stage.program(self.variant),
            params,
            inputs,
            outputs,
            groups: b * params.pieces as usize * d.div_ceil(WIDTH * VECTOR),
            work: 32 * (b * l * d) as u64 * n as u64,
        })
    }

    /// Where a sequence is cut: the sums of step sizes, `[b, pieces, d]`.
    fn sums(&self) -> Result<Option<GpuBuffer>> {
        let len = self.sizes.b * self.params.all_pieces as usize * self.sizes.d;
        (self.params.all_pieces > 1).then(|| self.scratch(len)).transpose()
    }

    fn carry(&self, params: ScanParams, sums: &GpuBuffer, states: &GpuBuffer) -> Result<()> {
        let Sizes { b, d, n, .. } = self.sizes;
        let params = ScanParams { len: (b * n * d) as u32, ..params };
        self.elements(Stage::Carry, params, &[self.packed.all(), sums.all()], &[states.all()])
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
    let scanner = Scanner::new(scan, gpu, inputs)?;
    let Sizes { b, d, n, .. } = scanner.sizes;
    let scratch;
    let (kept, keep) = match outputs.get(2) {
        Some(kept) => (kept.data, 1),
        None => {
            let chunks = if scanner.sizes.chunks() > 1 { scanner.sizes.chunks() } else { 0 };
            scratch = scanner.scratch(b * chunks * n * d)?;
            (&scratch, 0)
        }
    };
    let at = |which: Optional, absent| scan.index(which).map_or(absent, |i| inputs[i].data.all());
    let u = inputs[0].data.all();
    let bound = [
        scanner.packed.all(),
        u,
        inputs[1].data.all(),
        at(Optional::Z, u),
        at(Optional::State, scanner.packed.all()),
    ];
    let params = ScanParams { given: scanner.params.given | keep << 5, ..scanner.params };
    if let Some(sums) = scanner.sums()? {
        let params = ScanParams { pieces: params.pieces - 1, ..params };
        let results = [y.data.all(), sums.all(), kept.all()];
        scanner.pieces(Stage::Ends, params, &bound, &results)?;
        scanner.carry(params, &sums, kept)?;
    }
    let results = [y.data.all(), last.data.all(), kept.all()];
    scanner.pieces(Stage::Output, params, &bound, &results)
}

pub(super) fn backward(
    scan: &SelectiveScan,
    gpu: &Gpu,
    inputs: &[View<&GpuBuffer>],
    outputs: &[View<&GpuBuffer>],
) -> Result<()> {
    let [.., kept, dout, dlast] = inputs else { unreachable!("the upstream is behind") };
    let (u, state) = (&inputs[0], scan.index(Optional::State));
    if u.spec.len() == 0 {
        for output in outputs.iter().filter(|output| output.spec.len() > 0) {
            gpu.fill(OP, output.data, 0)?;
        }
        return state.map_or(Ok(()), |state| copy(gpu, dlast, &outputs[state]));
    }
    let scanner = Scanner::new(scan, gpu, inputs)?;
    let (Sizes { b, l, d, n }, chunks) = (scanner.sizes, scanner.sizes.chunks());
    let (packed, rows, blocks) = (scanner.packed.all(), n + 2, d.div_ceil(WIDTH * VECTOR));
    // Parts begin where a binding may.
    let part = (b * blocks * l * n).next_multiple_of(64);
    let base = ScanParams { rows: rows as u32, part: part as u32, backwards: 1, ..scanner.params };

    // In f32 there are no buffers but the results'.
    let half = u.spec.dtype() != DType::F32;
    let wide = |output: usize| -> Result<_> {
        Ok(if half { Some((scanner.scratch(b * l * d)?, output)) } else { None })
    };
    let (wide_du, wide_ddelta) = (wide(0)?, wide(1)?);
    let du = wide_du.as_ref().map_or(outputs[0].data, |(buffer, _)| buffer);
    let ddelta = wide_ddelta.as_ref().map_or(outputs[1].data, |(buffer, _)| buffer);
    let carries = scanner.scratch(b * (chunks * rows + n) * d)?;
    let z = scan.index(Optional::Z);
    scanner.elements(
        Stage::Upstream,
        ScanParams { len: (b * l.max(n) * d) as u32, ..base },
        &[
            packed,
            inputs[1].data.all(),
            z.map_or(u.data.all(), |z| inputs[z].data.all()),
            dout.data.all(),
            dlast.data.all(),
        ],
        &[ddelta.all(), du.all(), carries.all()],
    )?;
    if let Some(sums) = scanner.sums()? {
        let params = ScanParams { first_piece: 1, pieces: base.pieces - 1, ..base };
        let bound = [packed, ddelta.all(), du.all()];
        scanner.pieces(Stage::Reverse, params, &bound, &[carries.all(), sums.all()])?;
        scanner.carry(params, &sums, &carries)?;
    }
    let parts = scanner.scratch(2 * part)?;
    let y = scanner.scratch(if z.is_some() { b * l * d } else { 0 })?;
    scanner.pieces(
        Stage::Backward,
        base,
        &[packed, u.data.all(), kept.data.all()],
        &[ddelta.all(), du.all(), carries.all(), parts.all(), y.all()],
    )?;
    if let Some(z) = z {
        scanner.elements(
            Stage::GateGrad,
            ScanParams { len: (b * l * d) as u32, ..base },
            &[dout.data.all(), y.all(), inputs[z].data.all()],
            &[outputs[z].data.all()],
        )?;
    }

    let (bytes, narrow) = (DType::F32.size(), Folding::sum(OP, DType::F32, u.spec.dtype()));
    for (wide, output) in [wide_du, wide_ddelta].into_iter().flatten() {
        narrow.launch(gpu, wide.all(), [1, 1, b * l * d], outputs[output].data.all())?;
    }
    for (i, output) in [3, 4].into_iter().enumerate() {
        let own = parts.part(i * part * bytes, b * blocks * l * n * bytes);
        narrow.launch(gpu, own, [b, blocks, l * n], outputs[output].data.all())?;
    }
    let sums = scanner.scratch(rows * d)?;
    Folding::sum(OP, DType::F32, DType::F32).launch(
        gpu,
        carries.all(),
        [1, b * chunks, rows * d],
        sums.all(),
    )?;
    // A buffer cannot be bound twice to be written.
    let optional =
        [Optional::D, Optional::DeltaBias, Optional::State].map(|which| scan.index(which));
    let absent = [scanner.scratch(0)?, scanner.scratch(0)?, scanner.scratch(0)?];
    let [dd, ddelta_bias, dstate] =
        [0, 1, 2].map(|i| optional[i].map_or(absent[i].all(), |output| outputs[output].data.all()));
    scanner.elements(
        Stage::Finish,
        ScanParams { len: (b * n * d) as u32, ..base },
        &[packed, sums.all(), carries.all()],
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
    let stages = [
        Stage::Prepare,
        Stage::Ends,
        Stage::Carry,
        Stage::Output,
        Stage::Upstream,
        Stage::Reverse,
        Stage::Backward,
        Stage::GateGrad,
        Stage::Finish,
    ];
    let mut all = Vec::new();
    for hold in [Hold::Euler, Hold::ZeroOrder] {
        for starts in [false, true] {
            all.extend(stages.map(|stage| stage.program(Variant { elem, hold, starts })));
        }
    }
    all
}

#[cfg(test)]
#[test]
fn dump() {
    for (e, elem) in [DType::F32, DType::F16].into_iter().enumerate() {
        for (i, program) in programs(elem).into_iter().enumerate() {
            std::fs::write(format!("/tmp/h/dump/{e}_{i}.wgsl"), program.wgsl()).unwrap();
        }
    }
}

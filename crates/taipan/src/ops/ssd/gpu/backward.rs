//! Gradients of the scan on a GPU.

use super::{Context, Depth, Direction, Factor, Finish, Operand, Pass, Product, ScanParams};
use crate::DType;
use crate::error::Result;
use crate::gpu::{
    Binding, ELEMENTS, GpuBuffer, GpuView, Grid, LINES, Launch, Program, SUM, WORKGROUP,
    kernel_sizes, params, width,
};
use crate::kernel::GpuIo;
use crate::ops::ssd::{ChunkedScan, OP, Optional, Sizes};
use crate::reduction::{Fold, Reduction};

params! { struct DotParams { lines: u32, ranks: u32, units: u32, width: u32 } }

pub(in crate::ops::ssd) fn backward(op: &ChunkedScan, io: GpuIo) -> Result<()> {
    let scan = Context::new(op, &io);
    let [.., states, dy, dfinal] = io.inputs else { unreachable!("states and upstreams") };
    let [dx, da, dk, dq, optional @ ..] = io.outputs else { unreachable!("four inputs") };
    let mut optional = optional.iter();
    let mut next = |which| op.index(which).and_then(|_| optional.next());
    let (dscale, down) = (next(Optional::Scale), next(Optional::OwnScale));
    let dd = next(Optional::D);
    let dinitial = next(Optional::InitialState);
    let Sizes { b, l, r, h, p, n, g, .. } = scan.sizes;
    let (chunks, rows, gpu) = (scan.sizes.chunks(), scan.chunk_rows(), scan.gpu);
    let steps = b * l * h;

    let decays = scan.decays()?;
    let dstates = scan.scratch(scan.states_len())?;
    scan.local_states((scan.rows(dy), scan.group_rows(scan.q)), &decays.before, &dstates)?;
    let no_dinitial = scan.scratch(b * h * p * n)?;
    let to = dinitial.map_or(&no_dinitial, |dinitial| dinitial.data);
    scan.carry(Direction::Reverse, (&decays, Some(dfinal.all())), &dstates, to)?;
    let (masked, factors, scores) = scan.masks(Pass::Backward)?;
    let factors = factors.expect("of a backward pass");

    // From inputs to the state after the chunk, and to its outputs.
    let to_after = scan.times_states((scan.group_rows(scan.k), &dstates), &decays.after)?;
    let dinput = scan.scratch(scan.x.spec.len())?;
    scan.run(
        Product {
            units: h,
            left: (scan.matrices(&masked, h), Depth::Rows),
            right: (scan.rows(dy), Depth::Rows),
            sizes: [None, Some(p), None],
            over_heads: false,
            factor: (Factor::None, scan.a),
            finish: (Finish::Add, to_after.all()),
        },
        scan.rows_of(dinput.all(), DType::F32),
    )?;
    let x = (scan.x.all(), scan.elem);
    let dinput_own = match down {
        None => None,
        Some(down) => {
            let dinput_own = scan.own_step(dy, &scores)?;
            scan.dots(x, (dinput_own.all(), DType::F32), [steps, r, h, p], down.data)?;
            Some(dinput_own)
        }
    };
    scan.input_gradient(dy, (&dinput, dinput_own.as_ref()), dx)?;
    if let Some(dscale) = dscale {
        scan.dots(x, (dinput.all(), DType::F32), [steps, r, h, p], dscale.data)?;
    }
    if let Some(dd) = dd {
        let terms = scan.scratch(steps)?;
        scan.dots(x, (dy.all(), scan.elem), [steps, r, h, p], &terms)?;
        match b * l {
            0 => gpu.fill(OP, dd.data, 0)?,
            rows => {
                let sum = Reduction::sum_of_rows(rows, h);
                gpu.reduce(OP, sum, (terms.all(), DType::F32), dd.elements())?;
            }
        }
    }

    // Of the products q·k, for each head and in sum over the heads of a group.
    let weights = scan.scratch(b * chunks * h * rows * rows)?;
    scan.run(
        Product {
            units: h,
            left: (scan.rows(dy), Depth::Columns),
            right: (scan.rows(scan.x), Depth::Columns),
            sizes: [None, None, Some(p)],
            over_heads: false,
            factor: (Factor::None, scan.a),
            finish: (Finish::Multiply, factors.all()),
        },
        scan.matrices(&weights, h),
    )?;
    let group_weights = scan.scratch(b * chunks * g * rows * rows)?;
    let (outer, len, inner) = (b * chunks * g, h / g, rows * rows);
    let sum = Reduction { fold: Fold::Sum, outer, len, inner };
    gpu.reduce(OP, sum, (weights.all(), DType::F32), (group_weights.all(), DType::F32))?;
    let of = |from, factor, states, depth, other, to| {
        scan.group_gradient((from, factor, states), (&group_weights, depth, other), to)
    };
    of(dy, &decays.before, states.data, Depth::Columns, scan.k, dq)?;
    of(scan.x, &decays.entering, &dstates, Depth::Rows, scan.q, dk)?;

    // Of the decays.
    let [before_dots, after_dots] = [scan.scratch(steps)?, scan.scratch(steps)?];
    let seen = scan.times_states((scan.group_rows(scan.q), states.data), &decays.before)?;
    scan.dots((dy.all(), scan.elem), (seen.all(), DType::F32), [steps, r, h, p], &before_dots)?;
    scan.dots(x, (to_after.all(), DType::F32), [steps, r, h, p], &after_dots)?;
    let state_dots = scan.scratch(b * h * chunks)?;
    let (before, after) = ((states.all(), DType::F32), (dstates.all(), DType::F32));
    scan.dots(before, after, [b * h * chunks, 1, 1, p * n], &state_dots)?;
    gpu.launch(Launch {
        name: OP,
        program: decay_grad_program(scan.scale.is_some()),
        params: scan.params(steps)?,
        inputs: &[
            weights.all(),
            scores.all(),
            before_dots.all(),
            after_dots.all(),
            scan.scale.unwrap_or(scan.a),
            decays.all.all(),
            state_dots.all(),
        ],
        outputs: &[da.all()],
        grid: Grid { work: (steps * rows * rows / 6) as u64, ..Grid::elements(steps) },
    })
}

impl Context<'_> {
    /// `dx`, from the gradient of what enters the states, and of what a step sees of itself.
    fn input_gradient(
        &self,
        dy: &GpuView,
        (dinput, dinput_own): (&GpuBuffer, Option<&GpuBuffer>),
        dx: &GpuView,
    ) -> Result<()> {
        let len = dx.spec.len();
        let given = [self.scale, self.own_scale, self.d];
        let [scale, own_scale, d] = given.map(|given| given.unwrap_or(self.a));
        self.gpu.launch(Launch {
            name: OP,
            program: dx_program(self.elem, given.map(|given| given.is_some())),
            params: self.params(len)?,
            inputs: &[
                dinput.all(),
                dy.all(),
                scale,
                d,
                own_scale,
                dinput_own.map_or(self.a, GpuBuffer::all),
            ],
            outputs: &[dx.all()],
            grid: Grid::elements(len),
        })
    }

    /// The gradient of what a step sees of its own inputs, without its factor: see own_step.wgsl.
    fn own_step(&self, dy: &GpuView, scores: &GpuBuffer) -> Result<GpuBuffer> {
        let len = dy.spec.len();
        let dinput_own = self.scratch(len)?;
        self.gpu.launch(Launch {
            name: OP,
            program: own_step_program(self.elem),
            params: self.params(len)?,
            inputs: &[dy.all(), scores.all()],
            outputs: &[dinput_own.all()],
            grid: Grid { work: (len * self.sizes.r) as u64, ..Grid::elements(len) },
        })?;
        Ok(dinput_own)
    }

    /// `dq` or `dk`: from each head through its states, and through the products of rows.
    fn group_gradient(
        &self,
        (rows, factor, states): (&GpuView, &GpuBuffer, &GpuBuffer),
        (weights, depth, other): (&GpuBuffer, Depth, &GpuView),
        to: &GpuView,
    ) -> Result<()> {
        let Sizes { h, p, g, n, .. } = self.sizes;
        let sum = self.scratch(to.spec.len())?;
        let heads = h / g;
        let (rows, states) = (self.rows(rows), self.states(states.all()));
        self.run(
            Product {
                units: g,
                left: (Operand { unit: heads * rows.unit, ..rows }, Depth::Columns),
                right: (Operand { unit: heads * states.unit, ..states }, Depth::Rows),
                sizes: [None, Some(n), Some(heads * p)],
                over_heads: true,
                factor: (Factor::RowAndHead, factor.all()),
                finish: (Finish::Store, self.a),
            },
            self.group_rows_of(sum.all(), DType::F32),
        )?;
        self.run(
            Product {
                units: g,
                left: (self.matrices(weights, g), depth),
                right: (self.group_rows_of(other.all(), self.elem), Depth::Rows),
                sizes: [None, Some(n), None],
                over_heads: false,
                factor: (Factor::None, self.a),
                finish: (Finish::Add, sum.all()),
            },
            self.group_rows_of(to.all(), self.elem),
        )
    }

    /// See row_dots.wgsl.
    fn dots(
        &self,
        (u, u_type): (Binding, DType),
        (v, v_type): (Binding, DType),
        sizes: [usize; 4],
        to: &GpuBuffer,
    ) -> Result<()> {
        let [lines, ranks, units, len] = kernel_sizes(OP, sizes)?;
        let [count, r, _, p] = sizes;
        self.gpu.launch(Launch {
            name: OP,
            program: dots_program(u_type, v_type, width(r * p)),
            params: DotParams { lines, ranks, units, width: len },
            inputs: &[u, v],
            outputs: &[to.all()],
            grid: Grid::lines(count, count * r * p),
        })
    }
}

pub(super) fn dots_program(u: DType, v: DType, width: u32) -> Program {
    Program::new::<DotParams>(
        &[SUM, WORKGROUP, wgsl!("../row_dots.wgsl"), LINES],
        &[("U", u), ("V", v)],
        &[("WIDTH", width)],
    )
}

pub(super) fn dx_program(elem: DType, [scale, own_scale, skip]: [bool; 3]) -> Program {
    let consts = [("SCALE", scale as u32), ("OWN_SCALE", own_scale as u32), ("SKIP", skip as u32)];
    let source = [wgsl!("../dx.wgsl"), ELEMENTS];
    Program::new::<ScanParams>(&source, &[("Elem", elem)], &consts)
}

pub(super) fn own_step_program(elem: DType) -> Program {
    let source = [wgsl!("../own_step.wgsl"), ELEMENTS];
    Program::new::<ScanParams>(&source, &[("Elem", elem)], &[])
}

pub(super) fn decay_grad_program(scale: bool) -> Program {
    Program::new::<ScanParams>(
        &[wgsl!("../decay_grad.wgsl"), ELEMENTS],
        &[],
        &[("SCALE", scale as u32)],
    )
}

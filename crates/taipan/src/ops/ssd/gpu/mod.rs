//! The scan on a GPU: matrix products over all chunks at once, states carried from chunk to chunk
//! in between.

mod backward;
mod product;

pub(super) use self::backward::backward;
use self::product::{Depth, Factor, Finish, Operand, Product};
use super::{ChunkedScan, OP, Optional, Sizes};
use crate::DType;
use crate::error::Result;
use crate::gpu::{
    Binding, ELEMENTS, Gpu, GpuBuffer, GpuView, Grid, Launch, MATH, Program, kernel_sizes, params,
};
use crate::kernel::GpuIo;

params! {
    struct ScanParams {
        len: u32, steps: u32, ranks: u32, heads: u32, channels: u32, state: u32, groups: u32,
        group_heads: u32, chunks: u32, chunk_steps: u32, chunk_rows: u32,
    }
}
/// A scan on a GPU.
struct Context<'a> {
    gpu: &'a Gpu,
    sizes: Sizes,
    elem: DType,
    x: &'a GpuView<'a>,
    a: Binding<'a>,
    k: &'a GpuView<'a>,
    q: &'a GpuView<'a>,
    scale: Option<Binding<'a>>,
    own_scale: Option<Binding<'a>>,
    d: Option<Binding<'a>>,
    initial_state: Option<Binding<'a>>,
    seq_start: Option<Binding<'a>>,
}

/// The decays of all chunks: see decays.wgsl.
struct Decays {
    before: GpuBuffer,
    after: GpuBuffer,
    entering: GpuBuffer,
    all: GpuBuffer,
}

pub(super) fn forward(op: &ChunkedScan, io: GpuIo) -> Result<()> {
    let scan = Context::new(op, &io);
    let [y, final_state, saved @ ..] = io.outputs else { unreachable!("two results") };
    let scratch;
    let states = match saved.first() {
        Some(saved) => saved.data,
        None => {
            scratch = scan.scratch(scan.states_len())?;
            &scratch
        }
    };
    let decays = scan.decays()?;
    scan.local_states((scan.rows(scan.x), scan.group_rows(scan.k)), &decays.entering, states)?;
    scan.carry(Direction::Forward, (&decays, scan.initial_state), states, final_state.data)?;
    let (masked, _, _) = scan.masks(Pass::Forward)?;
    let seen = scan.times_states((scan.group_rows(scan.q), states), &decays.before)?;
    let Sizes { p, .. } = scan.sizes;
    let finish = if scan.d.is_some() { Finish::AddSkip } else { Finish::Add };
    scan.run(
        Product {
            units: scan.sizes.h,
            left: (scan.matrices(&masked, scan.sizes.h), Depth::Columns),
            right: (scan.rows(scan.x), Depth::Rows),
            sizes: [None, Some(p), None],
            over_heads: false,
            factor: (Factor::None, scan.a),
            finish: (finish, seen.all()),
        },
        scan.rows(y),
    )
}

/// The order of chunks.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Reverse,
}

/// What the matrices of rows are for: see masks.wgsl.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    Backward,
}

impl<'a> Context<'a> {
    fn new(op: &ChunkedScan, io: &GpuIo<'a>) -> Context<'a> {
        let inputs = io.inputs;
        let optional = |which| op.index(which).map(|i| inputs[i].all());
        Context {
            gpu: io.gpu,
            sizes: Sizes::of(&[inputs[0].spec, inputs[1].spec, inputs[2].spec]),
            elem: inputs[0].spec.dtype(),
            x: &inputs[0],
            a: inputs[1].all(),
            k: &inputs[2],
            q: &inputs[3],
            scale: optional(Optional::Scale),
            own_scale: optional(Optional::OwnScale),
            d: optional(Optional::D),
            initial_state: optional(Optional::InitialState),
            seq_start: optional(Optional::SeqStart),
        }
    }

    fn chunk_rows(&self) -> usize {
        self.sizes.chunk_steps() * self.sizes.r
    }

    /// The elements of the states of all chunks.
    fn states_len(&self) -> usize {
        let Sizes { b, h, .. } = self.sizes;
        b * h * self.sizes.chunks() * self.sizes.state()
    }

    /// A buffer for this many f32.
    fn scratch(&self, len: usize) -> Result<GpuBuffer> {
        self.gpu.scratch(OP, len * DType::F32.size())
    }

    /// `[b, rows, h, p]`: of each head, `[rows, p]`.
    fn rows<'b>(&self, view: &GpuView<'b>) -> Operand<'b> {
        self.rows_of(view.all(), view.spec.dtype())
    }

    fn rows_of<'b>(&self, data: Binding<'b>, dtype: DType) -> Operand<'b> {
        let Sizes { h, p, .. } = self.sizes;
        let (row, rows) = (h * p, self.sizes.rows());
        let (sequence, chunk) = (rows * row, self.chunk_rows() * row);
        Operand { data, dtype, sequence, chunk, share: 1, unit: p, row, column: 1 }
    }

    /// `[b, rows, g, n]`: of the group of each head, `[rows, n]`.
    fn group_rows<'b>(&self, view: &GpuView<'b>) -> Operand<'b> {
        let share = self.sizes.h / self.sizes.g;
        Operand { share, ..self.group_rows_of(view.all(), view.spec.dtype()) }
    }

    /// The same of each group.
    fn group_rows_of<'b>(&self, data: Binding<'b>, dtype: DType) -> Operand<'b> {
        let Sizes { g, n, .. } = self.sizes;
        let (row, rows) = (g * n, self.sizes.rows());
        let (sequence, chunk) = (rows * row, self.chunk_rows() * row);
        Operand { data, dtype, sequence, chunk, share: 1, unit: n, row, column: 1 }
    }

    /// `[b, h, chunks, p, n]`: of each head, `[p, n]`.
    fn states<'b>(&self, data: Binding<'b>) -> Operand<'b> {
        let Sizes { h, n, .. } = self.sizes;
        let (state, chunks) = (self.sizes.state(), self.sizes.chunks());
        let (sequence, unit) = (h * chunks * state, chunks * state);
        Operand {
            data,
            dtype: DType::F32,
            sequence,
            chunk: state,
            share: 1,
            unit,
            row: n,
            column: 1,
        }
    }

    /// `[b, chunks, units, rows, rows]`: of each head or group, `[rows, rows]`.
    fn matrices<'b>(&self, buffer: &'b GpuBuffer, units: usize) -> Operand<'b> {
        let (row, chunks) = (self.chunk_rows(), self.sizes.chunks());
        let unit = row * row;
        let (chunk, sequence) = (units * unit, chunks * units * unit);
        let data = buffer.all();
        Operand { data, dtype: DType::F32, sequence, chunk, share: 1, unit, row, column: 1 }
    }

    fn params(&self, len: usize) -> Result<ScanParams> {
        let Sizes { l, r, h, p, g, .. } = self.sizes;
        let sizes = [len, l, r, h, p, self.sizes.state(), g, h / g];
        let [len, steps, ranks, heads, channels, state, groups, group_heads] =
            kernel_sizes(OP, sizes)?;
        let [chunks, chunk_steps, chunk_rows] =
            kernel_sizes(OP, [self.sizes.chunks(), self.sizes.chunk_steps(), self.chunk_rows()])?;
        Ok(ScanParams {
            len,
            steps,
            ranks,
            heads,
            channels,
            state,
            groups,
            group_heads,
            chunks,
            chunk_steps,
            chunk_rows,
        })
    }

    fn decays(&self) -> Result<Decays> {
        let Sizes { b, l, h, .. } = self.sizes;
        let (steps, chunks) = (b * l * h, b * self.sizes.chunks() * h);
        let [before, after, entering] =
            [self.scratch(steps)?, self.scratch(steps)?, self.scratch(steps)?];
        let all = self.scratch(chunks)?;
        self.gpu.launch(Launch {
            name: OP,
            program: decays_program(self.scale.is_some(), self.seq_start.is_some()),
            params: self.params(chunks)?,
            inputs: &[self.a, self.scale.unwrap_or(self.a), self.seq_start.unwrap_or(self.a)],
            outputs: &[before.all(), after.all(), entering.all(), all.all()],
            grid: Grid { work: 40 * steps as u64, ..Grid::elements(chunks) },
        })?;
        Ok(Decays { before, after, entering, all })
    }

    /// What each chunk adds to the states: `Σ factor_t·x_t ⊗ k_t` over its rows.
    fn local_states(
        &self,
        (x, k): (Operand, Operand),
        factor: &GpuBuffer,
        states: &GpuBuffer,
    ) -> Result<()> {
        let Sizes { h, p, n, .. } = self.sizes;
        self.run(
            Product {
                units: h,
                left: (x, Depth::Rows),
                right: (k, Depth::Rows),
                sizes: [Some(p), Some(n), None],
                over_heads: false,
                factor: (Factor::Depth, factor.all()),
                finish: (Finish::Store, self.a),
            },
            self.states(states.all()),
        )
    }

    /// See carry.wgsl.
    fn carry(
        &self,
        direction: Direction,
        (decays, initial): (&Decays, Option<Binding>),
        states: &GpuBuffer,
        last: &GpuBuffer,
    ) -> Result<()> {
        let len = self.sizes.b * self.sizes.h * self.sizes.state();
        self.gpu.launch(Launch {
            name: OP,
            program: carry_program(direction, initial.is_some()),
            params: self.params(len)?,
            inputs: &[decays.all.all(), initial.unwrap_or(self.a)],
            outputs: &[states.all(), last.all()],
            grid: Grid { work: 2 * self.states_len() as u64, ..Grid::elements(len) },
        })
    }

    /// The masked scores of each head; for backward, their factors; the scores `q·kᵀ` of each group.
    fn masks(&self, pass: Pass) -> Result<(GpuBuffer, Option<GpuBuffer>, GpuBuffer)> {
        let Sizes { b, h, g, n, .. } = self.sizes;
        let (rows, chunks) = (self.chunk_rows(), self.sizes.chunks());
        let scores = self.scratch(b * chunks * g * rows * rows)?;
        let of = |view: &GpuView<'a>| self.group_rows_of(view.all(), view.spec.dtype());
        self.run(
            Product {
                units: g,
                left: (of(self.q), Depth::Columns),
                right: (of(self.k), Depth::Columns),
                sizes: [None, None, Some(n)],
                over_heads: false,
                factor: (Factor::None, self.a),
                finish: (Finish::Store, self.a),
            },
            self.matrices(&scores, g),
        )?;
        let len = b * chunks * h * rows;
        let masked = self.scratch(len * rows)?;
        let is_backward = pass == Pass::Backward;
        let factors = self.scratch(if is_backward { len * rows } else { 0 })?;
        let given = [self.scale, self.own_scale, self.seq_start];
        let [scale, own_scale, seq_start] = given.map(|given| given.unwrap_or(self.a));
        self.gpu.launch(Launch {
            name: OP,
            program: masks_program(pass, given.map(|given| given.is_some())),
            params: self.params(len)?,
            inputs: &[self.a, seq_start, scores.all(), scale, own_scale],
            outputs: &[masked.all(), factors.all()],
            grid: Grid { work: (20 * len * rows) as u64, ..Grid::elements(len) },
        })?;
        Ok((masked, is_backward.then_some(factors), scores))
    }

    /// `factor_t·state·q_t` of each head, `[b, rows, h, p]` in f32.
    fn times_states(
        &self,
        (q, states): (Operand, &GpuBuffer),
        factor: &GpuBuffer,
    ) -> Result<GpuBuffer> {
        let Sizes { h, p, n, .. } = self.sizes;
        let out = self.scratch(self.x.spec.len())?;
        self.run(
            Product {
                units: h,
                left: (q, Depth::Columns),
                right: (self.states(states.all()), Depth::Columns),
                sizes: [None, Some(p), Some(n)],
                over_heads: false,
                factor: (Factor::Row, factor.all()),
                finish: (Finish::Store, self.a),
            },
            self.rows_of(out.all(), DType::F32),
        )?;
        Ok(out)
    }
}

fn decays_program(scale: bool, seq_start: bool) -> Program {
    Program::new::<ScanParams>(
        &[MATH, wgsl!("../decays.wgsl"), ELEMENTS],
        &[],
        &[("SCALE", scale as u32), ("SEQ_START", seq_start as u32)],
    )
}

fn masks_program(pass: Pass, [scale, own_scale, seq_start]: [bool; 3]) -> Program {
    let is_backward = pass == Pass::Backward;
    let consts = [
        ("BACKWARD", is_backward as u32),
        ("SCALE", scale as u32),
        ("OWN_SCALE", own_scale as u32),
        ("SEQ_START", seq_start as u32),
    ];
    Program::new::<ScanParams>(&[MATH, wgsl!("../masks.wgsl"), ELEMENTS], &[], &consts)
}

fn carry_program(direction: Direction, initial: bool) -> Program {
    let reverse = direction == Direction::Reverse;
    Program::new::<ScanParams>(
        &[wgsl!("../carry.wgsl"), ELEMENTS],
        &[],
        &[("REVERSE", reverse as u32), ("INITIAL", initial as u32)],
    )
}

/// Every program of the op.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    use self::backward::{decay_grad_program, dots_program, dx_program, own_step_program};
    use self::product::Variant;

    let wide = DType::F32;
    let both = [false, true];
    let mut all = Vec::new();
    for flag in both {
        all.push(decay_grad_program(flag));
        all.extend([Direction::Forward, Direction::Reverse].map(|d| carry_program(d, flag)));
        for other in both {
            all.push(decays_program(flag, other));
            for third in both {
                let given = [flag, other, third];
                all.extend([Pass::Forward, Pass::Backward].map(|pass| masks_program(pass, given)));
                all.push(dx_program(elem, given));
            }
        }
    }
    all.push(own_step_program(elem));
    for width in crate::gpu::WIDTHS {
        all.extend(
            [(elem, elem), (elem, wide), (wide, wide)].map(|(u, v)| dots_program(u, v, width)),
        );
    }
    let mut product = |left, right, out, rows, factor, finish| {
        let types = [left, right, elem, out];
        all.push(Variant { types, rows, factor, finish }.program());
    };
    product(elem, elem, wide, [true, true, false], Factor::None, Finish::Store);
    product(elem, elem, wide, [false, false, true], Factor::Depth, Finish::Store);
    product(elem, wide, wide, [true, false, false], Factor::Row, Finish::Store);
    product(wide, elem, wide, [true, false, true], Factor::None, Finish::Add);
    product(elem, wide, wide, [true, false, false], Factor::RowAndHead, Finish::Store);
    product(wide, elem, elem, [true, false, true], Factor::None, Finish::Add);
    product(wide, elem, elem, [true, false, true], Factor::None, Finish::AddSkip);
    product(elem, elem, wide, [true, true, false], Factor::None, Finish::Multiply);
    all
}

//! The scan on a GPU: matrix products over all chunks at once, states carried from chunk to chunk
//! in between.

use super::{ChunkedScan, OP, Optional, Sizes};
use crate::DType;
use crate::error::Result;
use crate::gpu::{
    Binding, ELEMENTS, Gpu, GpuBuffer, GpuView, Grid, LINES, Launch, MATH, Program, SUM, WORKGROUP,
    kernel_sizes, params, width,
};
use crate::kernel::GpuIo;
use crate::reduction::{Fold, Reduction};

params! {
    struct ProductParams {
        entries: u32, units: u32, chunks: u32, m: u32, n: u32, k: u32, inner: u32,
        steps: u32, ranks: u32, heads: u32, group_heads: u32, chunk_rows: u32,
        left_sequence: u32, left_chunk: u32, left_unit: u32, left_share: u32,
        left_lane: u32, left_outer: u32, left_inner: u32,
        right_sequence: u32, right_chunk: u32, right_unit: u32, right_share: u32,
        right_lane: u32, right_outer: u32, right_inner: u32,
        out_sequence: u32, out_chunk: u32, out_unit: u32, out_lane: u32,
    }
}
params! {
    struct ScanParams {
        len: u32, steps: u32, ranks: u32, heads: u32, channels: u32, state: u32, groups: u32,
        group_heads: u32, chunks: u32, chunk_steps: u32, chunk_rows: u32,
    }
}
params! { struct DotParams { lines: u32, ranks: u32, units: u32, width: u32 } }

/// A tensor and how it is indexed: by sequence, chunk, unit, and two dimensions of its matrices.
#[derive(Clone, Copy)]
struct Operand<'a> {
    data: Binding<'a>,
    dtype: DType,
    sequence: usize,
    chunk: usize,
    /// Units that share a matrix.
    share: usize,
    unit: usize,
    row: usize,
    column: usize,
}

/// Which of the two dimensions of an operand is summed over.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    Rows,
    Columns,
}

/// What the left operand is multiplied by: a tensor `[b, l, h]`, by this index of the product.
#[derive(Clone, Copy, PartialEq)]
enum Factor {
    None = 0,
    Row = 1,
    Depth = 2,
    /// The row, and the head of the depth, which runs over the heads of a group.
    RowAndHead = 3,
    /// Of the sums.
    Column = 4,
}

/// What becomes of a sum, with a tensor of the shape of the result.
#[derive(Clone, Copy, PartialEq)]
enum Finish {
    Store = 0,
    Add = 1,
    /// Adds `d·x` as well.
    AddSkip = 2,
    Multiply = 3,
}

/// A product for each chunk of each sequence and each unit.
struct Product<'a> {
    /// Heads or groups.
    units: usize,
    left: (Operand<'a>, Depth),
    right: (Operand<'a>, Depth),
    /// The rows and columns of the result, and the depth: their number, or none for rows of the
    /// chunk.
    sizes: [Option<usize>; 3],
    /// Whether the depth runs over all heads of a group.
    over_heads: bool,
    factor: (Factor, Binding<'a>),
    finish: (Finish, Binding<'a>),
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
    let (masked, _, _) = scan.masks(Save::Masked)?;
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
            factor: scan.scale_by(Factor::Depth),
            finish: (finish, seen.all()),
        },
        scan.rows(y),
    )
}

pub(super) fn backward(op: &ChunkedScan, io: GpuIo) -> Result<()> {
    let scan = Context::new(op, &io);
    let [.., states, dy, dfinal] = io.inputs else { unreachable!("states and upstreams") };
    let [dx, da, dk, dq, optional @ ..] = io.outputs else { unreachable!("four inputs") };
    let mut optional = optional.iter();
    let mut next = |which| op.index(which).and_then(|_| optional.next());
    let (dscale, dd) = (next(Optional::Scale), next(Optional::D));
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
    let (masked, lambda, scores) = scan.masks(Save::MaskedAndLambda)?;
    let lambda = lambda.expect("asked for");

    // From inputs to the state behind the chunk, and to its outputs.
    let to_behind = scan.times_states((scan.group_rows(scan.k), &dstates), &decays.after)?;
    let dinput = scan.scratch(scan.x.spec.len())?;
    scan.run(
        Product {
            units: h,
            left: (scan.matrices(&masked, h), Depth::Rows),
            right: (scan.rows(dy), Depth::Rows),
            sizes: [None, Some(p), None],
            over_heads: false,
            factor: (Factor::None, scan.a),
            finish: (Finish::Add, to_behind.all()),
        },
        scan.rows_of(dinput.all(), DType::F32),
    )?;
    scan.input_gradient(dy, &dinput, dx)?;
    let x = (scan.x.all(), scan.elem);
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
            factor: scan.scale_by(Factor::Column),
            finish: (Finish::Multiply, lambda.all()),
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
    let [before_dots, behind_dots] = [scan.scratch(steps)?, scan.scratch(steps)?];
    let seen = scan.times_states((scan.group_rows(scan.q), states.data), &decays.before)?;
    scan.dots((dy.all(), scan.elem), (seen.all(), DType::F32), [steps, r, h, p], &before_dots)?;
    scan.dots(x, (to_behind.all(), DType::F32), [steps, r, h, p], &behind_dots)?;
    let state_dots = scan.scratch(b * h * chunks)?;
    let (before, behind) = ((states.all(), DType::F32), (dstates.all(), DType::F32));
    scan.dots(before, behind, [b * h * chunks, 1, 1, p * n], &state_dots)?;
    gpu.launch(Launch {
        name: OP,
        program: decay_grad_program(scan.scale.is_some()),
        params: scan.params(steps)?,
        inputs: &[
            weights.all(),
            scores.all(),
            before_dots.all(),
            behind_dots.all(),
            scan.scale.unwrap_or(scan.a),
            decays.all.all(),
            state_dots.all(),
        ],
        outputs: &[da.all()],
        grid: Grid { work: (steps * rows * rows / 6) as u64, ..Grid::elements(steps) },
    })
}

/// The order of chunks.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Reverse,
}

/// Which matrices are stored.
#[derive(Clone, Copy, PartialEq)]
enum Save {
    Masked,
    MaskedAndLambda,
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

    /// A product with `scale`, if there is one.
    fn scale_by(&self, factor: Factor) -> (Factor, Binding<'a>) {
        self.scale.map_or((Factor::None, self.a), |scale| (factor, scale))
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

    /// `scores ⊙ Λ` of each head, Λ itself, and the scores `q·kᵀ` of each group.
    fn masks(&self, save: Save) -> Result<(GpuBuffer, Option<GpuBuffer>, GpuBuffer)> {
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
        let with_lambda = save == Save::MaskedAndLambda;
        let lambda = self.scratch(if with_lambda { len * rows } else { 0 })?;
        self.gpu.launch(Launch {
            name: OP,
            program: masks_program(with_lambda, self.seq_start.is_some()),
            params: self.params(len)?,
            inputs: &[self.a, self.seq_start.unwrap_or(self.a), scores.all()],
            outputs: &[masked.all(), lambda.all()],
            grid: Grid { work: (20 * len * rows) as u64, ..Grid::elements(len) },
        })?;
        Ok((masked, with_lambda.then_some(lambda), scores))
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

    /// `dx`, from the gradient of what enters the states.
    fn input_gradient(&self, dy: &GpuView, dinput: &GpuBuffer, dx: &GpuView) -> Result<()> {
        let len = dx.spec.len();
        self.gpu.launch(Launch {
            name: OP,
            program: dx_program(self.elem, self.scale.is_some(), self.d.is_some()),
            params: self.params(len)?,
            inputs: &[
                dinput.all(),
                dy.all(),
                self.scale.unwrap_or(self.a),
                self.d.unwrap_or(self.a),
            ],
            outputs: &[dx.all()],
            grid: Grid::elements(len),
        })
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

    fn run(&self, product: Product, out: Operand) -> Result<()> {
        let Product { units, left: (left, left_depth), right: (right, right_depth), .. } = product;
        let Sizes { b, l, r, h, p, g, .. } = self.sizes;
        let chunk_rows = self.chunk_rows();
        let [m, n, k] = product.sizes.map(|size| size.unwrap_or(chunk_rows));
        let entries = b * self.sizes.chunks() * units;
        // The strides of lanes, of the heads of the depth, and within a head.
        let strides = |operand: &Operand, depth: Depth, head: usize| {
            let (lane, inner) = match depth {
                Depth::Rows => (operand.column, operand.row),
                Depth::Columns => (operand.row, operand.column),
            };
            [lane, if product.over_heads { head } else { inner }, inner]
        };
        let (head, inner) = if product.over_heads { (h / g, p) } else { (1, 1) };
        let [left_lane, left_outer, left_inner] = strides(&left, left_depth, left.unit / head);
        let [right_lane, right_outer, right_inner] =
            strides(&right, right_depth, right.unit / head);
        let variant = Variant {
            types: [left.dtype, right.dtype, self.elem, out.dtype],
            rows: product.sizes.map(|size| size.is_none()),
            factor: product.factor.0,
            finish: product.finish.0,
        };
        let sizes = [
            entries,
            units,
            self.sizes.chunks(),
            m,
            n,
            k,
            inner,
            l,
            r,
            h,
            h / g,
            chunk_rows,
            left.sequence,
            left.chunk,
            left.unit,
            left.share,
            left_lane,
            left_outer,
            left_inner,
            right.sequence,
            right.chunk,
            right.unit,
            right.share,
            right_lane,
            right_outer,
            right_inner,
            out.sequence,
            out.chunk,
            out.unit,
            out.row,
        ];
        let params: ProductParams = bytemuck::cast(kernel_sizes(OP, sizes)?);
        let groups = entries * m.div_ceil(TILE) * n.div_ceil(TILE);
        self.gpu.launch(Launch {
            name: OP,
            program: variant.program(),
            params,
            inputs: &[
                left.data,
                right.data,
                product.factor.1,
                product.finish.1,
                self.x.all(),
                self.d.unwrap_or(self.a),
            ],
            outputs: &[out.data],
            grid: Grid { groups, work: (entries * m * n) as u64 * k as u64 },
        })
    }
}

/// Rows and columns that a workgroup of product.wgsl computes.
const TILE: usize = 64;

/// What the program of a product depends on.
struct Variant {
    /// Of left, right, `x` and the result.
    types: [DType; 4],
    /// Which sizes are rows of a chunk.
    rows: [bool; 3],
    factor: Factor,
    finish: Finish,
}

impl Variant {
    fn program(&self) -> Program {
        let [left, right, elem, out] = self.types;
        let [m, n, k] = self.rows.map(u32::from);
        Program::new::<ProductParams>(
            &[wgsl!("product.wgsl")],
            &[("Left", left), ("Right", right), ("Elem", elem), ("Out", out)],
            &[
                ("ROWS_M", m),
                ("ROWS_N", n),
                ("ROWS_K", k),
                ("FACTOR", self.factor as u32),
                ("FINISH", self.finish as u32),
            ],
        )
    }
}

fn decays_program(scale: bool, seq_start: bool) -> Program {
    Program::new::<ScanParams>(
        &[MATH, wgsl!("decays.wgsl"), ELEMENTS],
        &[],
        &[("SCALE", scale as u32), ("SEQ_START", seq_start as u32)],
    )
}

fn masks_program(lambda: bool, seq_start: bool) -> Program {
    Program::new::<ScanParams>(
        &[MATH, wgsl!("masks.wgsl"), ELEMENTS],
        &[],
        &[("LAMBDA", lambda as u32), ("SEQ_START", seq_start as u32)],
    )
}

fn carry_program(direction: Direction, initial: bool) -> Program {
    let reverse = direction == Direction::Reverse;
    Program::new::<ScanParams>(
        &[wgsl!("carry.wgsl"), ELEMENTS],
        &[],
        &[("REVERSE", reverse as u32), ("INITIAL", initial as u32)],
    )
}

fn dots_program(u: DType, v: DType, width: u32) -> Program {
    Program::new::<DotParams>(
        &[SUM, WORKGROUP, wgsl!("row_dots.wgsl"), LINES],
        &[("U", u), ("V", v)],
        &[("WIDTH", width)],
    )
}

fn dx_program(elem: DType, scale: bool, skip: bool) -> Program {
    Program::new::<ScanParams>(
        &[wgsl!("dx.wgsl"), ELEMENTS],
        &[("Elem", elem)],
        &[("SCALE", scale as u32), ("SKIP", skip as u32)],
    )
}

fn decay_grad_program(scale: bool) -> Program {
    Program::new::<ScanParams>(
        &[wgsl!("decay_grad.wgsl"), ELEMENTS],
        &[],
        &[("SCALE", scale as u32)],
    )
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    let wide = DType::F32;
    let both = [false, true];
    let mut all = Vec::new();
    for flag in both {
        all.push(decay_grad_program(flag));
        all.extend([Direction::Forward, Direction::Reverse].map(|d| carry_program(d, flag)));
        for other in both {
            all.extend([decays_program(flag, other), masks_program(flag, other)]);
            all.push(dx_program(elem, flag, other));
        }
    }
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
    for factor in [Factor::None, Factor::Depth] {
        for finish in [Finish::Add, Finish::AddSkip] {
            product(wide, elem, elem, [true, false, true], factor, finish);
        }
    }
    for factor in [Factor::None, Factor::Column] {
        product(elem, elem, wide, [true, true, false], factor, Finish::Multiply);
    }
    all
}

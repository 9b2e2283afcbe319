//! Matrix products of all chunks of a scan at once.

use super::Context;
use crate::DType;
use crate::error::Result;
use crate::gpu::{Binding, Grid, Launch, Program, kernel_sizes, params};
use crate::ops::ssd::{OP, Sizes};

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
/// A tensor and how it is indexed: by sequence, chunk, unit, and two dimensions of its matrices.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) data: Binding<'a>,
    pub(super) dtype: DType,
    pub(super) sequence: usize,
    pub(super) chunk: usize,
    /// Units that share a matrix.
    pub(super) share: usize,
    pub(super) unit: usize,
    pub(super) row: usize,
    pub(super) column: usize,
}

/// Which of the two dimensions of an operand is summed over.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Depth {
    Rows,
    Columns,
}

/// What the left operand is multiplied by: a tensor `[b, l, h]`, by this index of the product.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Factor {
    None = 0,
    Row = 1,
    Depth = 2,
    /// The row, and the head of the depth, which runs over the heads of a group.
    RowAndHead = 3,
}

/// What becomes of a sum, with a tensor of the shape of the result.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Finish {
    Store = 0,
    Add = 1,
    /// Adds `d·x` as well.
    AddSkip = 2,
    Multiply = 3,
}

/// A product for each chunk of each sequence and each unit.
pub(super) struct Product<'a> {
    /// Heads or groups.
    pub(super) units: usize,
    pub(super) left: (Operand<'a>, Depth),
    pub(super) right: (Operand<'a>, Depth),
    /// The rows and columns of the result, and the depth: their number, or none for rows of the
    /// chunk.
    pub(super) sizes: [Option<usize>; 3],
    /// Whether the depth runs over all heads of a group.
    pub(super) over_heads: bool,
    pub(super) factor: (Factor, Binding<'a>),
    pub(super) finish: (Finish, Binding<'a>),
}

impl Context<'_> {
    /// Compute a product, into `out`.
    pub(super) fn run(&self, product: Product, out: Operand) -> Result<()> {
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
pub(super) struct Variant {
    /// Of left, right, `x` and the result.
    pub(super) types: [DType; 4],
    /// Which sizes are rows of a chunk.
    pub(super) rows: [bool; 3],
    pub(super) factor: Factor,
    pub(super) finish: Finish,
}

impl Variant {
    pub(super) fn program(&self) -> Program {
        let [left, right, elem, out] = self.types;
        let [m, n, k] = self.rows.map(u32::from);
        Program::new::<ProductParams>(
            &[wgsl!("../product.wgsl")],
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

//! The product of packed blocks, tile by tile.

use std::ops::Range;

use super::micro::{Micro, TILE_MAX};
use crate::dtype::Real;

/// What is zero or not needed in a product of square matrices, whose rows and columns are in blocks
/// of this size.
#[derive(Clone, Copy)]
pub(crate) enum Triangle {
    /// Nothing.
    None,
    /// The left operand is zero right of its diagonal blocks.
    LowerLeft(usize),
    /// The left operand is zero left of its diagonal blocks.
    UpperLeft(usize),
    /// Sums right of the diagonal blocks are not needed; they may have any value.
    LowerSums(usize),
}

impl Triangle {
    /// The steps of the depth that a tile needs.
    fn steps(self, rows: Range<usize>, first_column: usize, depth: usize) -> Range<usize> {
        match self {
            Triangle::LowerLeft(block) => 0..rows.end.next_multiple_of(block).min(depth),
            Triangle::UpperLeft(block) => rows.start / block * block..depth,
            Triangle::LowerSums(block) if first_column >= rows.end.next_multiple_of(block) => 0..0,
            Triangle::None | Triangle::LowerSums(_) => 0..depth,
        }
    }
}

/// Packed blocks, and the layout of their product.
pub(super) struct Tiles<'a, A> {
    pub(super) micro: &'a Micro<A>,
    pub(super) depth: usize,
    pub(super) left: &'a [A],
    pub(super) right: &'a [A],
    /// Elements from one row of the sums to the next.
    pub(super) stride: usize,
    /// Whether to add to the sums, or to overwrite them.
    pub(super) add: bool,
    pub(super) triangle: Triangle,
}

impl<A: Real> Tiles<'_, A> {
    /// The product of `left` and the given columns of `right`; `sums` begins at the first row and
    /// column of the blocks.
    pub(super) fn run(&self, columns: Range<usize>, sums: &mut [A]) {
        let (mr, nr) = (self.micro.rows, self.micro.columns);
        let height = sums.len().div_ceil(self.stride);
        for column in columns.clone().step_by(nr) {
            let right = &self.right[column * self.depth..(column + nr) * self.depth];
            let width = nr.min(columns.end - column);
            for row in (0..height).step_by(mr) {
                let left = &self.left[row * self.depth..(row + mr) * self.depth];
                let sums = &mut sums[row * self.stride + column..];
                let rows = mr.min(height - row);
                let steps = self.triangle.steps(row..row + rows, column, self.depth);
                if steps.is_empty() {
                    continue;
                }
                let left = &left[steps.start * mr..steps.end * mr];
                let right = &right[steps.start * nr..steps.end * nr];
                let (tile_rows, micro_tile) = self.micro.tile_of(rows);
                if width == nr && tile_rows == rows {
                    micro_tile(left, right, sums, self.stride, self.add);
                    continue;
                }
                // At the border, compute a whole tile and copy the elements that exist.
                let mut tile = [A::ZERO; TILE_MAX];
                micro_tile(left, right, &mut tile, nr, false);
                for (sums, tile) in sums.chunks_mut(self.stride).zip(tile.chunks(nr)).take(rows) {
                    for (sum, x) in sums[..width].iter_mut().zip(tile) {
                        *sum = if self.add { *sum + *x } else { *x };
                    }
                }
            }
        }
    }
}

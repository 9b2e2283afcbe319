//! Reductions, in as many passes as it takes: each folds blocks, in an order that depends on the
//! sizes only, and writes f32 for the next.

use super::program::{ELEMENTS, FLOAT_ORDER, LINES, WORKGROUP, width};
use super::{Binding, Gpu, GpuBuffer, Grid, Launch, Program, params};
use crate::DType;
use crate::error::Result;
use crate::reduction::{Fold, Reduction};

params! {
    struct FoldParams { lines: u32, len: u32, count: u32, inner: u32, blocks: u32, divisor: f32 }
}

/// Contiguous elements that a workgroup folds into one.
const ROW_BLOCK: usize = 4096;
/// Elements that an invocation folds into one.
const COLUMN_BLOCK: usize = 64;

impl Gpu {
    /// Fill `y`, `[outer, inner]`, with the reductions of `x`, `[outer, len, inner]`; `len` is not
    /// 0.
    pub(crate) fn reduce(
        &self,
        op: &'static str,
        Reduction { fold, outer, len, inner }: Reduction,
        (x, mut from): (Binding, DType),
        (y, result): (Binding, DType),
    ) -> Result<()> {
        let divisor = if fold == Fold::Mean { len as f32 } else { 1.0 };
        let mut left = len;
        let mut partial: Option<GpuBuffer> = None;
        loop {
            // A workgroup folds contiguous elements, an invocation strided or few ones.
            let rows = (inner == 1 && left > COLUMN_BLOCK).then(|| width(left));
            let block = if rows.is_some() { ROW_BLOCK } else { COLUMN_BLOCK };
            let blocks = left.div_ceil(block);
            let last = blocks == 1;
            let to = if last { result } else { DType::F32 };
            let next = match last {
                true => None,
                false => Some(self.scratch(op, outer * blocks * inner * DType::F32.size())?),
            };
            let x = partial.as_ref().map_or(x, GpuBuffer::all);
            let y = next.as_ref().map_or(y, GpuBuffer::all);
            // A single row may be longer than a binding.
            let single = outer == 1 && inner == 1;
            let windows = single.then(|| self.windows(blocks, block * from.size()));
            let whole = (!single).then_some(0..blocks);
            for window in whole.into_iter().chain(windows.into_iter().flatten()) {
                let elements = window.start * block..(window.end * block).min(left);
                let (count, lines) = (elements.len(), outer * window.len());
                let (x, y) = match window.len() == blocks {
                    true => (x, y),
                    false => (x.window(elements, from.size()), y.window(window.clone(), to.size())),
                };
                let work = outer * count * inner;
                let grid = match rows {
                    Some(_) => Grid::lines(lines, work),
                    None => Grid { work: work as u64, ..Grid::elements(lines * inner) },
                };
                let [lines, len, count, inner, blocks] =
                    [lines, lines * inner, count, inner, window.len()].map(|size| size as u32);
                let divisor = if last { divisor } else { 1.0 };
                self.launch(Launch {
                    name: op,
                    program: program(fold, rows, from, to),
                    params: FoldParams { lines, len, count, inner, blocks, divisor },
                    inputs: &[x],
                    outputs: &[y],
                    grid,
                })?;
            }
            if last {
                return Ok(());
            }
            (partial, from, left) = (next, DType::F32, blocks);
        }
    }
}

/// For contiguous elements, with workgroups of this width; or for strided ones.
fn program(fold: Fold, rows: Option<u32>, from: DType, to: DType) -> Program {
    let join = wgsl!("fold.wgsl");
    let types = [("In", from), ("Out", to)];
    let is_min = ("MIN", (fold == Fold::Min) as u32);
    let is_max = ("MAX", matches!(fold, Fold::Max | Fold::Min) as u32);
    match rows {
        Some(width) => Program::new::<FoldParams>(
            &[FLOAT_ORDER, join, WORKGROUP, wgsl!("rows.wgsl"), LINES],
            &types,
            &[is_max, is_min, ("BLOCK", ROW_BLOCK as u32), ("WIDTH", width)],
        ),
        None => Program::new::<FoldParams>(
            &[FLOAT_ORDER, join, wgsl!("columns.wgsl"), ELEMENTS],
            &types,
            &[is_max, is_min, ("BLOCK", COLUMN_BLOCK as u32)],
        ),
    }
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let mut all = Vec::new();
    for fold in [Fold::Sum, Fold::Mean, Fold::Max, Fold::Min] {
        for (from, to) in [(elem, elem), (elem, DType::F32), (DType::F32, elem)] {
            let [narrow, wide] = super::WIDTHS;
            all.extend([None, Some(narrow), Some(wide)].map(|rows| program(fold, rows, from, to)));
        }
    }
    all
}

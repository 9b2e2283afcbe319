//! Products with few rows, as in decoding: the right side is read once, and not packed.

use super::{DEPTH, Entry, Finish, Rows, Strip, blocks, even};
use crate::cpu::CpuBuffer;
use crate::cpu::map::{add, add_scaled};
use crate::cpu::threads::{self, try_for_chunks};
use crate::dtype::{Float, Real};
use crate::error::Result;

/// The most rows for which reading the right side takes longer than the arithmetic.
pub(super) const ROWS: usize = 8;

/// The number of elements of the right side up to which a second thread is not worth it: if they
/// are in cache, they take a microsecond.
const MEMORY_GRAIN: usize = 1 << 16;

/// Whether to use [`thin`].
pub(super) fn is_thin<A>(product: &Entry<A>) -> bool {
    // With lines along the lanes, each line must be long enough to be worth a call.
    product.m <= ROWS && (product.right.lines_are_lanes() || product.n >= 32)
}

/// [`Entry::store`] for at most [`ROWS`] rows.
pub(super) fn thin<T: Float, X>(
    product: &Entry<T::Acc>,
    out: &mut [T],
    row_data: &mut [X],
    finish: Finish<T::Acc, X>,
) -> Result<()> {
    let Entry { m, n, k, right, .. } = *product;
    let mut left = rows_of_left(product)?;
    right.source.prepare(&mut left)?;
    let left = left;
    // Strips of columns, `[m, strip]` each, are computed in parallel.
    let strip = if right.lines_are_lanes() { (n / 8).clamp(16, 64) & !3 } else { 256 }.min(n);
    // These products wait for memory: a second thread is worth it for fewer multiply-adds.
    let threads = if n.saturating_mul(k) <= MEMORY_GRAIN { 1 } else { threads::count() };
    let size = m * n.next_multiple_of(strip) * size_of::<T::Acc>();
    let mut sums = CpuBuffer::scratch("gemm", size)?;
    let sums = sums.as_mut_slice::<T::Acc>();
    try_for_chunks(sums, m * strip, threads, |i, sums| {
        let columns = i * strip..n.min((i + 1) * strip);
        if right.lines_are_lanes() {
            let lines = right.first_line + columns.start..right.first_line + columns.end;
            return right.source.dots(lines, &left, Strip { sums, stride: strip });
        }
        let mut buffer = CpuBuffer::scratch("gemm", columns.len() * size_of::<T::Acc>())?;
        // Summed in blocks of the depth, as with many rows.
        sums.fill(T::Acc::ZERO);
        let mut block = CpuBuffer::scratch("gemm", size_of_val(sums))?;
        let block = block.as_mut_slice::<T::Acc>();
        for depth in blocks(0..k, even(k, DEPTH, 1)) {
            block.fill(T::Acc::ZERO);
            for step in depth {
                let line = right.read(step, columns.start, buffer.as_mut_slice());
                for row in 0..m {
                    add_scaled(&mut block[row * strip..], left.row(row)[step], line);
                }
            }
            add(sums, block);
        }
        Ok(())
    })?;
    for (row, (out, x)) in out.chunks_mut(n).zip(row_data).enumerate() {
        for (i, out) in out.chunks_mut(strip).enumerate() {
            let columns = i * strip..i * strip + out.len();
            let sums = &mut sums[(i * m + row) * strip..][..out.len()];
            finish(x, columns, sums);
            T::narrow(sums, out);
        }
    }
    Ok(())
}

/// The left side as `[m, k]`.
fn rows_of_left<A: Real>(product: &Entry<A>) -> Result<Rows<A>> {
    let Entry { m, k, left, .. } = *product;
    let mut rows = Rows::new(m, k)?;
    if left.lines_are_lanes() {
        let mut buffer = CpuBuffer::scratch("gemm", k * size_of::<A>())?;
        for row in 0..m {
            rows.row_mut(row).copy_from_slice(left.read(row, 0, buffer.as_mut_slice()));
        }
    } else {
        let mut line = [A::ZERO; ROWS];
        for step in 0..k {
            for (row, x) in left.read(step, 0, &mut line[..m]).iter().enumerate() {
                rows.row_mut(row)[step] = *x;
            }
        }
    }
    Ok(rows)
}

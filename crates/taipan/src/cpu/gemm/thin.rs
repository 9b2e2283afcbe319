//! Products with few rows, as in decoding: the right side is read once, and not packed.

use rayon::prelude::*;

use super::{DEPTH, Entry, Finish, blocks, even, min_len, threads_for};
use crate::cpu::CpuBuffer;
use crate::cpu::map::{add, add_scaled};
use crate::cpu::reduce::dot;
use crate::dtype::{Float, Real};
use crate::error::Result;

/// The most rows for which reading the right side takes longer than the arithmetic.
const ROWS: usize = 8;

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
    let left = rows_of_left(product)?;
    let left: Vec<&[T::Acc]> = (0..m).map(|row| &left.as_slice()[row * k..(row + 1) * k]).collect();
    // Strips of columns, `[m, strip]` each, are computed in parallel.
    let strip = if right.lines_are_lanes() { 64 } else { 256 }.min(n);
    let size = m * n.next_multiple_of(strip) * size_of::<T::Acc>();
    let mut sums = CpuBuffer::scratch("gemm", size)?;
    let sums = sums.as_mut_slice::<T::Acc>();
    let min_len = min_len(threads_for(n.saturating_mul(m * k)));
    sums.par_chunks_mut(m * strip).enumerate().with_min_len(min_len).try_for_each(
        |(i, sums)| {
            let columns = i * strip..n.min((i + 1) * strip);
            let len = if right.lines_are_lanes() { k } else { columns.len() };
            let mut buffer = CpuBuffer::scratch("gemm", len * size_of::<T::Acc>())?;
            if right.lines_are_lanes() {
                for (j, column) in columns.enumerate() {
                    let line = right.read(column, 0, buffer.as_mut_slice());
                    for (row, left) in left.iter().enumerate() {
                        sums[row * strip + j] = dot(left, line);
                    }
                }
                return Ok(());
            }
            // Summed in blocks of the depth, as with many rows.
            sums.fill(T::Acc::ZERO);
            let mut block = CpuBuffer::scratch("gemm", size_of_val(sums))?;
            let block = block.as_mut_slice::<T::Acc>();
            for depth in blocks(0..k, even(k, DEPTH, 1)) {
                block.fill(T::Acc::ZERO);
                for step in depth {
                    let line = right.read(step, columns.start, buffer.as_mut_slice());
                    for (row, left) in left.iter().enumerate() {
                        add_scaled(&mut block[row * strip..], left[step], line);
                    }
                }
                add(sums, block);
            }
            Ok(())
        },
    )?;
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
fn rows_of_left<A: Real>(product: &Entry<A>) -> Result<CpuBuffer> {
    let Entry { m, k, left, .. } = *product;
    let mut rows = CpuBuffer::scratch("gemm", m * k * size_of::<A>())?;
    if left.lines_are_lanes() {
        let mut buffer = CpuBuffer::scratch("gemm", k * size_of::<A>())?;
        for (line, row) in rows.as_mut_slice::<A>().chunks_mut(k.max(1)).enumerate() {
            row.copy_from_slice(left.read(line, 0, buffer.as_mut_slice()));
        }
    } else {
        let mut line = [A::ZERO; ROWS];
        for step in 0..k {
            for (row, x) in left.read(step, 0, &mut line[..m]).iter().enumerate() {
                rows.as_mut_slice::<A>()[row * k + step] = *x;
            }
        }
    }
    Ok(rows)
}

//! Products with few rows, as in decoding: the right side is read once, and not packed.

use rayon::prelude::*;

use super::{DEPTH, Finish, Lines, Product, blocks, even, threads_for};
use crate::cpu::{CpuBuffer, fold};
use crate::dtype::{Float, Real};
use crate::error::Result;

/// The most rows for which reading the right side takes longer than the arithmetic.
const ROWS: usize = 8;

/// Whether to use [`thin`].
pub(super) fn is_thin<A>(product: &Product<A>) -> bool {
    // With lines along the lanes, each line must be long enough to be worth a call.
    product.m <= ROWS && (product.right.lines == Lines::Lanes || product.n >= 32)
}

/// [`gemm`](super::gemm) for at most [`ROWS`] rows.
pub(super) fn thin<T: Float, X>(
    product: &Product<T::Acc>,
    out: &mut [T],
    row_data: &mut [X],
    finish: Finish<T::Acc, X>,
) -> Result<()> {
    let Product { m, n, k, right, .. } = *product;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let left = rows_of_left(product)?;
    let left: Vec<&[T::Acc]> = (0..m).map(|row| &left.as_slice()[row * k..(row + 1) * k]).collect();
    // Strips of columns, `[m, strip]` each, are computed in parallel.
    let strip = match right.lines {
        Lines::Lanes => 64,
        Lines::Depth => 256,
    }
    .min(n);
    let size = m * n.next_multiple_of(strip) * size_of::<T::Acc>();
    let mut sums = CpuBuffer::scratch("gemm", size)?;
    let sums = sums.as_mut_slice::<T::Acc>();
    let min_len = if threads_for(n.saturating_mul(m * k)) == 1 { usize::MAX } else { 1 };
    sums.par_chunks_mut(m * strip).enumerate().with_min_len(min_len).try_for_each(
        |(i, sums)| {
            let columns = i * strip..n.min((i + 1) * strip);
            let len = if right.lines == Lines::Lanes { k } else { columns.len() };
            let mut buffer = CpuBuffer::scratch("gemm", len * size_of::<T::Acc>())?;
            match right.lines {
                Lines::Lanes => {
                    for (j, column) in columns.enumerate() {
                        let line = right.source.read(column, 0, buffer.as_mut_slice());
                        for (row, left) in left.iter().enumerate() {
                            sums[row * strip + j] = fold::dot(left, line);
                        }
                    }
                }
                Lines::Depth => {
                    // Summed in blocks of the depth, as with many rows.
                    sums.fill(T::Acc::ZERO);
                    let mut block = CpuBuffer::scratch("gemm", size_of_val(sums))?;
                    let block = block.as_mut_slice::<T::Acc>();
                    for depth in blocks(0..k, even(k, DEPTH, 1)) {
                        block.fill(T::Acc::ZERO);
                        for step in depth {
                            let line =
                                right.source.read(step, columns.start, buffer.as_mut_slice());
                            for (row, left) in left.iter().enumerate() {
                                fold::add_scaled(&mut block[row * strip..], left[step], line);
                            }
                        }
                        fold::add(sums, block);
                    }
                }
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
fn rows_of_left<A: Real>(product: &Product<A>) -> Result<CpuBuffer> {
    let Product { m, k, left, .. } = *product;
    let mut rows = CpuBuffer::scratch("gemm", m * k * size_of::<A>())?;
    match left.lines {
        Lines::Lanes => {
            let mut buffer = CpuBuffer::scratch("gemm", k * size_of::<A>())?;
            for (line, row) in rows.as_mut_slice::<A>().chunks_mut(k.max(1)).enumerate() {
                row.copy_from_slice(left.source.read(line, 0, buffer.as_mut_slice()));
            }
        }
        Lines::Depth => {
            let mut line = [A::ZERO; ROWS];
            for step in 0..k {
                for (row, x) in left.source.read(step, 0, &mut line[..m]).iter().enumerate() {
                    rows.as_mut_slice::<A>()[row * k + step] = *x;
                }
            }
        }
    }
    Ok(rows)
}

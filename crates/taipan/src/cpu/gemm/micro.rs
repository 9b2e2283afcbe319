//! The inner kernel: a tile of the product, held in registers.

use super::Tiled;
use crate::cpu::isa::Level;

/// Room for the largest tile.
pub(crate) const TILE_MAX: usize = 12 * 32;

/// A kernel for one type and instruction set.
pub(crate) struct Micro<A> {
    /// Rows of the tile.
    pub(super) rows: usize,
    /// Columns of the tile.
    pub(super) columns: usize,
    /// `tile(left, right, sums, stride, add)`: the product of a panel of `rows` lanes and one of
    /// `columns` lanes, written or added to `sums`, whose rows are `stride` apart.
    pub(super) tile: fn(&[A], &[A], &mut [A], usize, bool),
}

impl Tiled for f32 {
    fn micro(level: Level) -> Micro<f32> {
        match level {
            Level::Baseline => Micro { rows: 6, columns: 8, tile: portable::<f32, 6, 8> },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::f32_avx2(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => x86::f32_avx512(),
        }
    }
}

impl Tiled for f64 {
    fn micro(level: Level) -> Micro<f64> {
        match level {
            Level::Baseline => Micro { rows: 6, columns: 4, tile: portable::<f64, 6, 4> },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::f64_avx2(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => x86::f64_avx512(),
        }
    }
}

/// The kernel in plain loops, which the optimiser turns into the target's vectors.
fn portable<A: crate::dtype::Real, const R: usize, const C: usize>(
    left: &[A],
    right: &[A],
    sums: &mut [A],
    stride: usize,
    add: bool,
) {
    use crate::cpu::isa::Baseline;
    let mut tile = [[A::ZERO; C]; R];
    for (l, r) in left.as_chunks::<R>().0.iter().zip(right.as_chunks::<C>().0) {
        for (row, l) in tile.iter_mut().zip(l) {
            for (sum, r) in row.iter_mut().zip(r) {
                *sum = l.fma::<Baseline>(*r, *sum);
            }
        }
    }
    for (sums, row) in sums.chunks_mut(stride).zip(&tile) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum = if add { *sum + *x } else { *x };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Micro;

    macro_rules! micro {
        ($name:ident, $element:ty, $features:literal, $lanes:literal, $rows:literal,
         $zero:ident, $splat:ident, $load:ident, $store:ident, $add:ident, $fma:ident) => {
            /// A tile two vectors wide. Only for processors that have the features.
            pub(super) fn $name() -> Micro<$element> {
                const ROWS: usize = $rows;
                const COLUMNS: usize = 2 * $lanes;

                #[target_feature(enable = $features)]
                fn tile(
                    left: &[$element],
                    right: &[$element],
                    sums: &mut [$element],
                    stride: usize,
                    add: bool,
                ) {
                    assert!(
                        sums.len() >= (ROWS - 1) * stride + COLUMNS,
                        "gemm: a tile beyond its block"
                    );
                    let mut tile = [[$zero(); 2]; ROWS];
                    for row in 0..ROWS {
                        _mm_prefetch::<_MM_HINT_T0>(sums[row * stride..].as_ptr().cast());
                    }
                    for (l, r) in
                        left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0)
                    {
                        // SAFETY: `r` has two vectors' elements.
                        let (r0, r1) =
                            unsafe { ($load(r.as_ptr()), $load(r.as_ptr().add($lanes))) };
                        for row in 0..ROWS {
                            let l = $splat(l[row]);
                            tile[row][0] = $fma(l, r0, tile[row][0]);
                            tile[row][1] = $fma(l, r1, tile[row][1]);
                        }
                    }
                    for row in 0..ROWS {
                        let to = sums[row * stride..].as_mut_ptr();
                        // SAFETY: the assertion above: COLUMNS elements follow.
                        unsafe {
                            let [mut x0, mut x1] = tile[row];
                            if add {
                                x0 = $add($load(to), x0);
                                x1 = $add($load(to.add($lanes)), x1);
                            }
                            $store(to, x0);
                            $store(to.add($lanes), x1);
                        }
                    }
                }

                Micro {
                    rows: ROWS,
                    columns: COLUMNS,
                    // SAFETY: the caller has asked the processor.
                    tile: |left, right, sums, stride, add| unsafe {
                        tile(left, right, sums, stride, add)
                    },
                }
            }
        };
    }

    micro!(
        f32_avx2,
        f32,
        "avx2,fma",
        8,
        6,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_fmadd_ps
    );
    micro!(
        f64_avx2,
        f64,
        "avx2,fma",
        4,
        6,
        _mm256_setzero_pd,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_add_pd,
        _mm256_fmadd_pd
    );
    micro!(
        f32_avx512,
        f32,
        "avx512f",
        16,
        12,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        _mm512_fmadd_ps
    );
    micro!(
        f64_avx512,
        f64,
        "avx512f",
        8,
        12,
        _mm512_setzero_pd,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_add_pd,
        _mm512_fmadd_pd
    );
}

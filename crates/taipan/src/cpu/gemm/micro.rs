//! The inner kernel: a tile of the product, held in registers.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};
use std::hint::black_box;
use std::ops::Range;

use super::pack::{add_panel, pack};
#[cfg(target_arch = "x86_64")]
use super::pack::{add_panel_of_pairs, pack_pairs};
#[cfg(target_arch = "x86_64")]
use super::vector::Pairs;
use super::{Operand, Tiled};
use crate::cpu::isa::{Baseline, Level};
use crate::cpu::math::Math;
use crate::dtype::Real;
use crate::error::Result;

/// Lanes of the widest panel.
pub(super) const LANES_MAX: usize = 32;
/// Elements of the largest tile.
pub(super) const TILE_MAX: usize = 12 * LANES_MAX;

/// A kernel for one type and instruction set, and its packing functions.
pub(crate) struct Micro<A> {
    /// Rows of the tile.
    pub(super) rows: usize,
    /// Columns of the tile.
    pub(super) columns: usize,
    /// Steps of the depth in a packed element: 2 if it is a pair of bf16.
    pub(super) steps: usize,
    /// [`pack`] for `rows` lanes.
    pub(super) pack_left: Pack<A>,
    /// [`pack`] for `columns` lanes.
    pub(super) pack_right: Pack<A>,
    pub(super) add_panel: AddPanel<A>,
    pub(super) tile: Tile<A>,
    /// Tiles of the first rows of a panel, and how many: fewest first.
    pub(super) shorter: [(usize, Tile<A>); 2],
}

/// `pack(operand, lanes, depth, packed)`
type Pack<A> = fn(Operand<A>, Range<usize>, Range<usize>, &mut [A]) -> Result<()>;

/// `add_panel(panel, width, sums)`: add each lane of a panel, summed over the depth, to `sums`,
/// which may be fewer.
pub(super) type AddPanel<A> = fn(&[A], usize, &mut [A]);

/// `tile(left, right, sums, stride, add)`: the product of a panel of `rows` lanes and one of
/// `columns` lanes, written or added to `sums`, whose rows are `stride` apart.
type Tile<A> = fn(&[A], &[A], &mut [A], usize, bool);

impl<A: Real> Micro<A> {
    fn new<const ROWS: usize, const COLUMNS: usize>(tile: Tile<A>) -> Self {
        let (pack_left, pack_right) = (pack::<A, ROWS>, pack::<A, COLUMNS>);
        Micro {
            rows: ROWS,
            columns: COLUMNS,
            steps: 1,
            pack_left,
            pack_right,
            add_panel: add_panel::<A>,
            tile,
            shorter: [(ROWS, tile); 2],
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn with_shorter(self, shorter: [(usize, Tile<A>); 2]) -> Self {
        Micro { shorter, ..self }
    }

    /// The packed elements of a lane.
    pub(super) fn packed(&self, depth: usize) -> usize {
        depth.div_ceil(self.steps)
    }

    /// The smallest tile that has this many rows, and its rows.
    pub(super) fn tile_of(&self, rows: usize) -> (usize, Tile<A>) {
        let shorter = self.shorter.iter().find(|(has, _)| *has >= rows);
        shorter.copied().unwrap_or((self.rows, self.tile))
    }
}

impl Tiled for f32 {
    fn micro(level: Level) -> Micro<f32> {
        match level {
            Level::Baseline => Micro::new::<6, 8>(portable::<f32, 6, 8>),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Micro::new::<6, 16>(x86::avx2::<__m256, 6>)
                .with_shorter([(2, x86::avx2::<__m256, 2>), (4, x86::avx2::<__m256, 4>)]),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Micro::new::<12, 32>(x86::avx512::<__m512, 12>)
                .with_shorter([(4, x86::avx512::<__m512, 4>), (8, x86::avx512::<__m512, 8>)]),
        }
    }

    fn micro_bf16(level: Level) -> Micro<f32> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if is_x86_feature_detected!("avx512bf16") => Micro {
                steps: 2,
                pack_left: pack_pairs::<12>,
                pack_right: pack_pairs::<32>,
                add_panel: add_panel_of_pairs,
                ..Micro::new::<12, 32>(x86::avx512_bf16::<Pairs, 12>).with_shorter([
                    (4, x86::avx512_bf16::<Pairs, 4>),
                    (8, x86::avx512_bf16::<Pairs, 8>),
                ])
            },
            _ => f32::micro(level),
        }
    }
}

impl Tiled for f64 {
    fn micro(level: Level) -> Micro<f64> {
        match level {
            Level::Baseline => Micro::new::<6, 4>(portable::<f64, 6, 4>),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Micro::new::<6, 8>(x86::avx2::<__m256d, 6>)
                .with_shorter([(2, x86::avx2::<__m256d, 2>), (4, x86::avx2::<__m256d, 4>)]),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Micro::new::<12, 16>(x86::avx512::<__m512d, 12>)
                .with_shorter([(4, x86::avx512::<__m512d, 4>), (8, x86::avx512::<__m512d, 8>)]),
        }
    }
}

/// Multiply and add, in registers, `steps` times in each lane: the number of operations.
#[cfg_attr(target_family = "wasm", allow(dead_code))]
pub(crate) fn multiply_adds(steps: usize) -> usize {
    match Level::current() {
        Level::Baseline => {
            const N: usize = 24;
            let mut sums = [0f32; N];
            for _ in 0..steps {
                for sum in &mut sums {
                    *sum = Math::fma::<Baseline>(*sum, 0.5, 1.0);
                }
            }
            black_box(sums);
            2 * N * steps
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => x86::avx2_chains(steps),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512_chains(steps),
    }
}

/// The kernel as plain loops, which the optimiser vectorises.
fn portable<A: Real, const ROWS: usize, const COLUMNS: usize>(
    left: &[A],
    right: &[A],
    sums: &mut [A],
    stride: usize,
    add: bool,
) {
    let mut tile = [[A::ZERO; COLUMNS]; ROWS];
    for (l, r) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
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
    use std::hint::black_box;

    use crate::cpu::gemm::vector::Vector;
    use crate::cpu::prefetch::prefetch;
    use crate::dtype::Real;

    /// [`tile`] compiled for an instruction set. Only for processors that have it.
    macro_rules! tile_for {
        ($name:ident, $features:literal, $panel:literal) => {
            pub(super) fn $name<V: Vector, const ROWS: usize>(
                left: &[V::Element],
                right: &[V::Element],
                sums: &mut [V::Element],
                stride: usize,
                add: bool,
            ) {
                #[target_feature(enable = $features)]
                fn run<V: Vector, const ROWS: usize>(
                    left: &[V::Element],
                    right: &[V::Element],
                    sums: &mut [V::Element],
                    stride: usize,
                    add: bool,
                ) {
                    // SAFETY: this function has the instruction set.
                    unsafe { tile::<V, $panel, ROWS>(left, right, sums, stride, add) }
                }
                // SAFETY: chosen for a `Level` that the processor was asked for.
                unsafe { run::<V, ROWS>(left, right, sums, stride, add) }
            }
        };
    }
    // Rows of two vectors: 12 of 16 registers, and 24 of 32.
    tile_for!(avx2, "avx2,fma", 6);
    tile_for!(avx512, "avx512f", 12);
    tile_for!(avx512_bf16, "avx512f,avx512bf16", 12);

    /// [`chains`] compiled for an instruction set. Only for processors that have it.
    macro_rules! chains_for {
        ($name:ident, $features:literal, $vector:ident) => {
            pub(super) fn $name(steps: usize) -> usize {
                #[target_feature(enable = $features)]
                fn run(steps: usize) -> usize {
                    // SAFETY: this function has the instruction set.
                    unsafe { chains::<std::arch::x86_64::$vector>(steps) }
                }
                // SAFETY: chosen for a `Level` that the processor was asked for.
                unsafe { run(steps) }
            }
        };
    }
    chains_for!(avx2_chains, "avx2,fma", __m256);
    chains_for!(avx512_chains, "avx512f", __m512);

    /// Multiply-adds in as many registers as hide their latency.
    ///
    /// SAFETY: the caller is compiled for the instruction set of `V`.
    #[inline(always)]
    unsafe fn chains<V: Vector<Element = f32>>(steps: usize) -> usize {
        const N: usize = 12;
        // SAFETY: the caller's instruction set.
        unsafe {
            let (half, one) = (V::splat(0.5), V::splat(1.0));
            let mut sums = [V::splat(black_box(0.0)); N];
            for _ in 0..steps {
                for sum in &mut sums {
                    *sum = one.fma(half, *sum);
                }
            }
            for sum in sums {
                black_box(sum.sum());
            }
        }
        2 * N * V::LANES * steps
    }

    /// The first `ROWS` rows of a panel of `PANEL`.
    ///
    /// SAFETY: the caller is compiled for the instruction set of `V`.
    #[inline(always)]
    unsafe fn tile<V: Vector, const PANEL: usize, const ROWS: usize>(
        left: &[V::Element],
        right: &[V::Element],
        sums: &mut [V::Element],
        stride: usize,
        add: bool,
    ) {
        let columns = 2 * V::LANES;
        assert!(sums.len() >= (ROWS - 1) * stride + columns, "gemm: a tile beyond its block");
        // SAFETY: the caller's instruction set. `right` is read in whole steps of two vectors;
        // the assertion covers what is loaded from and stored to `sums`.
        unsafe {
            let mut tile = [[V::splat(V::Element::ZERO); 2]; ROWS];
            for row in 0..ROWS {
                prefetch(&sums[row * stride..][..columns]);
            }
            for (l, r) in left.as_chunks::<PANEL>().0.iter().zip(right.chunks_exact(columns)) {
                let r = [V::load(r.as_ptr()), V::load(r.as_ptr().add(V::LANES))];
                for (tile, l) in tile.iter_mut().zip(l) {
                    let l = V::splat(*l);
                    *tile = [tile[0].fma(l, r[0]), tile[1].fma(l, r[1])];
                }
            }
            for (row, tile) in tile.into_iter().enumerate() {
                let to = sums.as_mut_ptr().add(row * stride);
                for (i, x) in tile.into_iter().enumerate() {
                    let to = to.add(i * V::LANES);
                    if add { V::load(to).add(x).store(to) } else { x.store(to) }
                }
            }
        }
    }
}

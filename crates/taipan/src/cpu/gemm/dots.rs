//! Dot products of lines with a few rows, for [`thin`](super::thin): a line is read once, in the
//! order of memory, and converted in registers.

use std::marker::PhantomData;
use std::ops::Range;

use super::Source;
use super::int8::Int8Rows;
use crate::cpu::CpuBuffer;
use crate::cpu::isa::Level;
use crate::cpu::reduce::dot;
use crate::dtype::Real;
use crate::error::Result;

/// Rows of the left side, `[m, k]`. Each is padded with zeros to whole vectors.
pub(crate) struct Rows<A> {
    data: CpuBuffer,
    pub(super) m: usize,
    pub(super) k: usize,
    /// In 8 bits, for weights in 8 bits.
    pub(super) int8: Option<Int8Rows>,
    element: PhantomData<A>,
}

/// Elements of the longest vector.
const VECTOR: usize = 16;

impl<A: Real> Rows<A> {
    /// Zeros.
    pub(super) fn new(m: usize, k: usize) -> Result<Rows<A>> {
        let len = m * k.next_multiple_of(VECTOR);
        let mut data = CpuBuffer::scratch("gemm", len * size_of::<A>())?;
        data.as_mut_slice::<A>().fill(A::ZERO);
        Ok(Rows { data, m, k, int8: None, element: PhantomData })
    }

    /// Elements from one row to the next.
    fn stride(&self) -> usize {
        self.k.next_multiple_of(VECTOR)
    }

    /// A row without its padding.
    pub(super) fn row(&self, row: usize) -> &[A] {
        &self.data.as_slice()[row * self.stride()..][..self.k]
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut [A] {
        let (stride, k) = (self.stride(), self.k);
        &mut self.data.as_mut_slice()[row * stride..][..k]
    }
}

/// Where the dot products of some lines go: that of row `i` and line `j` to `sums[i·stride + j]`.
pub(crate) struct Strip<'a, A> {
    pub(super) sums: &'a mut [A],
    pub(super) stride: usize,
}

/// Lines of a matrix in memory, `k` elements of each, `stride` apart.
// Other architectures read line by line.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct Lines<'a, T> {
    pub(super) data: &'a [T],
    pub(super) stride: usize,
    pub(super) count: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a, T> Lines<'a, T> {
    fn line(&self, line: usize, k: usize) -> &'a [T] {
        &self.data[line * self.stride..][..k]
    }
}

/// The dot products of lines and rows; for `T`'s instruction set.
pub(crate) type Dots<T, A> = fn(&Lines<T>, &Rows<A>, Strip<A>);

/// The same for any source.
pub(super) fn by_reading<A: Real>(
    source: &(impl Source<A> + ?Sized),
    lines: Range<usize>,
    rows: &Rows<A>,
    strip: Strip<A>,
) -> Result<()> {
    let mut buffer = CpuBuffer::scratch("gemm", rows.k * size_of::<A>())?;
    for (j, line) in lines.enumerate() {
        let line = source.read(line, 0, buffer.as_mut_slice());
        for i in 0..rows.m {
            strip.sums[i * strip.stride + j] = dot(rows.row(i), line);
        }
    }
    Ok(())
}

/// [`Dots`] for an instruction set, if there is one.
macro_rules! dots {
    ($name:ident, $t:ty, $acc:ty, $avx2:ident, $avx512:ident) => {
        pub(crate) fn $name(level: Level) -> Option<Dots<$t, $acc>> {
            match level {
                Level::Baseline => None,
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => Some(x86::avx2::<std::arch::x86_64::$avx2, $t>),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => Some(x86::avx512::<std::arch::x86_64::$avx512, $t>),
            }
        }
    };
}
dots!(dots_f32, f32, f32, __m256, __m512);
dots!(dots_f64, f64, f64, __m256d, __m512d);
dots!(dots_f16, half::f16, f32, __m256, __m512);
dots!(dots_bf16, half::bf16, f32, __m256, __m512);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::cpu::gemm::vector::{Vector, Widen};
    use crate::cpu::prefetch::{prefetch_at, prefetch_for_later_at};

    /// Terms that are summed together; the sums of such blocks are added in order.
    const BLOCK: usize = 4096;

    /// How far ahead of the loads memory is fetched, in bytes: measured. Less than 4096 is too late
    /// on a fast memory, and more does not help.
    const AHEAD: usize = 8192;

    /// [`each_line`] compiled for an instruction set, which has registers for two lines and at most
    /// `$pairs` rows. Only for processors that have it.
    macro_rules! strip_for {
        ($name:ident, $features:literal, $pairs:literal) => {
            pub(super) fn $name<V: Vector, T: Widen<V>>(
                lines: &Lines<T>,
                rows: &Rows<V::Element>,
                strip: Strip<V::Element>,
            ) {
                // Not inlined: one after the other, they would have too few registers.
                #[target_feature(enable = $features)]
                #[inline(never)]
                fn run<V: Vector, T: Widen<V>, const M: usize>(
                    lines: &Lines<T>,
                    rows: &Rows<V::Element>,
                    first: usize,
                    strip: &mut Strip<V::Element>,
                ) -> usize {
                    // How many lines are read side by side: alone, one that is multiplied by
                    // several rows does not keep memory busy.
                    // SAFETY: this function has the instruction set.
                    unsafe {
                        match M {
                            2..=$pairs => each_line::<V, T, M, 2>(lines, rows, first, strip),
                            _ => each_line::<V, T, M, 1>(lines, rows, first, strip),
                        }
                    }
                    M
                }
                let mut strip = strip;
                // More than four rows do not stay in L1; the lines stay in L2 for the next four.
                let mut first = 0;
                while first < rows.m {
                    // SAFETY: chosen for a `Level` that the processor was asked for.
                    first += unsafe {
                        match rows.m - first {
                            1 => run::<V, T, 1>(lines, rows, first, &mut strip),
                            2 => run::<V, T, 2>(lines, rows, first, &mut strip),
                            3 => run::<V, T, 3>(lines, rows, first, &mut strip),
                            _ => run::<V, T, 4>(lines, rows, first, &mut strip),
                        }
                    }
                }
            }
        };
    }
    // Each row has two registers of sums for a line: 8 of 16, and 16 of 32.
    strip_for!(avx2, "avx2,fma,f16c", 2);
    strip_for!(avx512, "avx512f,avx2,fma,f16c", 4);

    /// Of `M` rows from `first` on, `R` lines at a time.
    ///
    /// SAFETY: the caller is compiled for the instruction set of `V`.
    #[inline(always)]
    unsafe fn each_line<V: Vector, T: Widen<V>, const M: usize, const R: usize>(
        lines: &Lines<T>,
        rows: &Rows<V::Element>,
        first: usize,
        strip: &mut Strip<V::Element>,
    ) {
        let data = &rows.data.as_slice::<V::Element>()[first * rows.stride()..];
        let sums = &mut strip.sums[first * strip.stride..];
        let mut j = 0;
        while j < lines.count {
            // SAFETY: the caller's instruction set.
            unsafe {
                if j + R <= lines.count {
                    let totals = totals::<V, T, M, R>(lines, j, rows, data);
                    store(&totals, &mut sums[j..], strip.stride);
                    j += R;
                } else {
                    let totals = totals::<V, T, M, 1>(lines, j, rows, data);
                    store(&totals, &mut sums[j..], strip.stride);
                    j += 1;
                }
            }
        }
    }

    fn store<A: Real, const M: usize>(totals: &[[A; M]], sums: &mut [A], stride: usize) {
        for (j, totals) in totals.iter().enumerate() {
            for (i, total) in totals.iter().enumerate() {
                sums[i * stride + j] = *total;
            }
        }
    }

    /// The dot products of `R` lines from `j` on with `M` rows, which `data` begins with.
    ///
    /// SAFETY: the caller is compiled for the instruction set of `V`.
    #[inline(always)]
    unsafe fn totals<V: Vector, T: Widen<V>, const M: usize, const R: usize>(
        lines: &Lines<T>,
        j: usize,
        rows: &Rows<V::Element>,
        data: &[V::Element],
    ) -> [[V::Element; M]; R] {
        let mut totals = [[V::Element::ZERO; M]; R];
        for from in (0..rows.k).step_by(BLOCK) {
            let to = rows.k.min(from + BLOCK);
            let terms = std::array::from_fn(|r| &lines.line(j + r, rows.k)[from..to]);
            // SAFETY: the caller's instruction set; `M` rows follow, of whole vectors each.
            let block = unsafe { dots::<V, T, M, R>(terms, &data[from..], rows.stride()) };
            for (total, sum) in totals.as_flattened_mut().iter_mut().zip(block.as_flattened()) {
                *total += *sum;
            }
        }
        totals
    }

    /// The dot products of some terms of each line with the beginnings of `M` rows, `stride` apart.
    /// The same number of terms of each.
    ///
    /// SAFETY: the caller is compiled for the instruction set of `V`; each row has as many elements
    /// as there are terms, rounded up to whole vectors, and those beyond are zero.
    #[inline(always)]
    unsafe fn dots<V: Vector, T: Widen<V>, const M: usize, const R: usize>(
        terms: [&[T]; R],
        rows: &[V::Element],
        stride: usize,
    ) -> [[V::Element; M]; R] {
        let len = terms[0].len();
        assert!(terms.iter().all(|terms| terms.len() == len), "gemm: lines of other lengths");
        let padded = len.next_multiple_of(V::LANES);
        assert!(rows.len() >= (M - 1) * stride + padded, "gemm: rows beyond their memory");
        let rows = rows.as_ptr();
        // SAFETY: the caller's instruction set. Loads of `terms` are of whole vectors within it, or
        // of a padded copy; the assertions cover those of the other lines and of the rows.
        unsafe {
            let mut sums = [[[V::splat(V::Element::ZERO); 2]; M]; R];
            let mut at = 0;
            while at + 2 * V::LANES <= len {
                // In the order of memory, though the lines are read side by side.
                let from = terms[0].as_ptr().wrapping_add(R * at).cast::<u8>();
                for line in (0..R * 2 * V::LANES * size_of::<T>()).step_by(64) {
                    match M {
                        1 => prefetch_at(from.wrapping_add(AHEAD + line)),
                        // To L2: the rows fill L1.
                        _ => prefetch_for_later_at(from.wrapping_add(AHEAD + line)),
                    }
                }
                for (terms, sums) in terms.iter().zip(&mut sums) {
                    let from = terms.as_ptr().add(at);
                    let w = [T::load(from), T::load(from.add(V::LANES))];
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let x = rows.add(i * stride + at);
                        sums[0] = sums[0].fma(V::load(x), w[0]);
                        sums[1] = sums[1].fma(V::load(x.add(V::LANES)), w[1]);
                    }
                }
                at += 2 * V::LANES;
            }
            while at < len {
                for (terms, sums) in terms.iter().zip(&mut sums) {
                    let rest = &terms[at..len.min(at + V::LANES)];
                    let w = match rest.len() == V::LANES {
                        true => T::load(rest.as_ptr()),
                        false => T::load_some(rest),
                    };
                    for (i, sums) in sums.iter_mut().enumerate() {
                        sums[0] = sums[0].fma(V::load(rows.add(i * stride + at)), w);
                    }
                }
                at += V::LANES;
            }
            // Not by `map`: a closure would be compiled without the instruction set.
            let mut totals = [[V::Element::ZERO; M]; R];
            for (totals, sums) in totals.iter_mut().zip(&sums) {
                for (total, [a, b]) in totals.iter_mut().zip(sums) {
                    *total = a.add(*b).sum();
                }
            }
            totals
        }
    }
}

//! Sums and maxima, in an order that depends on sizes only.

use super::isa::vectorized;
use super::map::{BLOCK, add};
use super::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, widened};
use crate::reduction::{Fold, Reduction};

/// Fill `out`, `[outer, inner]`, with the reductions of `x`, `[outer, len, inner]`.
pub(crate) fn reduce<T: Float>(reduction: Reduction, x: &[T], out: &mut [T]) {
    match reduction.inner {
        1 => reduce_rows(reduction, x, out),
        _ => reduce_columns(reduction, x, out),
    }
}

impl Fold {
    fn start<A: Real>(self) -> A {
        match self {
            Fold::Max => A::of(f64::NEG_INFINITY),
            Fold::Min => A::of(f64::INFINITY),
            Fold::Sum | Fold::Mean => A::ZERO,
        }
    }

    fn slice<A: Real>(self, x: &[A]) -> A {
        match self {
            Fold::Max => max(x).unwrap_or(self.start()),
            Fold::Min => min(x, self.start()),
            Fold::Sum | Fold::Mean => sum(x),
        }
    }

    /// `acc = fold(acc, x)`, element by element.
    fn merge<A: Real>(self, acc: &mut [A], x: &[A]) {
        match self {
            Fold::Max => merge_row::<Larger, A>(acc, x),
            Fold::Min => merge_row::<Smaller, A>(acc, x),
            Fold::Sum | Fold::Mean => add(acc, x),
        }
    }

    /// The same with several rows, one after the other: `acc` is read and written once for all.
    fn merge_many<A: Real>(self, acc: &mut [A], rows: [&[A]; TOGETHER]) {
        match self {
            Fold::Max => merge_rows::<Larger, A>(acc, rows),
            Fold::Min => merge_rows::<Smaller, A>(acc, rows),
            Fold::Sum | Fold::Mean => merge_rows::<Plus, A>(acc, rows),
        }
    }

    fn finish<A: Real>(self, acc: A, len: usize) -> A {
        match self {
            Fold::Mean => acc / A::of(len as f64),
            Fold::Sum | Fold::Max | Fold::Min => acc,
        }
    }
}

/// `[outer, len]` to `[outer]`: first blocks of each row, in parallel, then the results of the
/// blocks.
fn reduce_rows<T: Float>(Reduction { fold, len, .. }: Reduction, x: &[T], out: &mut [T]) {
    let blocks = len.div_ceil(BLOCK);
    let mut partial = vec![fold.start::<T::Acc>(); out.len() * blocks];
    for_chunks(&mut partial, GRAIN.div_ceil(len.clamp(1, BLOCK)), |start, chunk| {
        let mut wide = [T::Acc::ZERO; BLOCK];
        for (i, partial) in chunk.iter_mut().enumerate() {
            let (row, block) = ((start + i) / blocks, (start + i) % blocks);
            let x = &x[row * len..][..len][block * BLOCK..];
            let wide = &mut wide[..x.len().min(BLOCK)];
            *partial = fold.slice(widened(&x[..wide.len()], wide));
        }
    });
    for_chunks(out, GRAIN.div_ceil(blocks.max(1)), |start, chunk| {
        for (i, out) in chunk.iter_mut().enumerate() {
            let acc = fold.slice(&partial[(start + i) * blocks..][..blocks]);
            T::narrow(&[fold.finish(acc, len)], std::slice::from_mut(out));
        }
    });
}

/// Rows that are reduced in one pass: with fewer, reading memory waits for what has been summed.
const TOGETHER: usize = 8;

/// Columns of such a pass that are widened together.
const WIDTH: usize = 256;

/// `[outer, len, inner]` to `[outer, inner]`: first blocks of rows, so that the error does not grow
/// with their number, in parallel, then the results of the blocks.
fn reduce_columns<T: Float>(reduction: Reduction, x: &[T], out: &mut [T]) {
    let Reduction { fold, len, inner, .. } = reduction;
    const ROWS: usize = 256;
    let blocks = len.div_ceil(ROWS);
    let mut partial = vec![fold.start::<T::Acc>(); out.len() * blocks]; // [outer, blocks, inner]
    for_strips(&mut partial, (len.min(ROWS), inner), |strip, row, column| {
        let mut wide = [[T::Acc::ZERO; WIDTH]; TOGETHER];
        let width = T::as_acc(x).map_or(WIDTH, |_| strip.len());
        let (outer, block) = (row / blocks, row % blocks);
        let (first, end) = (block * ROWS, len.min((block + 1) * ROWS));
        for i in (first..end).step_by(TOGETHER) {
            for (j, acc) in strip.chunks_mut(width).enumerate() {
                let n = acc.len();
                let mut rows = wide.iter_mut().zip(i..end).map(|(wide, row)| {
                    let at = (outer * len + row) * inner + column + j * width;
                    widened(&x[at..][..n], &mut wide[..n.min(WIDTH)])
                });
                if i + TOGETHER <= end {
                    fold.merge_many(acc, std::array::from_fn(|_| rows.next().expect("a row")));
                } else {
                    rows.for_each(|row| fold.merge(acc, row));
                }
            }
        }
    });
    for_strips(out, (blocks, inner), |strip, outer, column| {
        let mut total = [T::Acc::ZERO; BLOCK];
        for (i, out) in strip.chunks_mut(BLOCK).enumerate() {
            let total = &mut total[..out.len()];
            total.fill(fold.start());
            for block in 0..blocks {
                let partial = &partial[(outer * blocks + block) * inner + column + i * BLOCK..];
                fold.merge(total, &partial[..out.len()]);
            }
            total.iter_mut().for_each(|x| *x = fold.finish(*x, len));
            T::narrow(total, out);
        }
    });
}

/// Call `f(strip, row, column)` for strips of the rows of `out`, `[…, inner]`, in parallel; for each
/// element `depth` others are read. Strips are long, since memory is fast where it is read in order.
fn for_strips<T: Send>(
    out: &mut [T],
    (depth, inner): (usize, usize),
    f: impl Fn(&mut [T], usize, usize) + Sync,
) {
    const STRIP: usize = 4096;
    for_chunks(out, (GRAIN / depth.max(1)).max(STRIP), |start, mut chunk| {
        let mut at = start;
        while !chunk.is_empty() {
            let (row, column) = (at / inner, at % inner);
            let (strip, rest) = chunk.split_at_mut(STRIP.min(inner - column).min(chunk.len()));
            at += strip.len();
            f(strip, row, column);
            chunk = rest;
        }
    });
}

/// Partial sums computed in parallel by the vector units.
pub(crate) const LANES: usize = 32;

/// The sum; the error grows with the logarithm of the length.
pub(crate) fn sum<A: Real>(x: &[A]) -> A {
    const LEAF: usize = 1024;
    match x.len() {
        // Too short for lanes.
        0..8 => return x.iter().fold(A::ZERO, |sum, x| sum + *x),
        8..=LEAF => return sum_by_lanes(x),
        _ => {}
    }
    let (left, right) = x.split_at((x.len() / 2).next_multiple_of(LANES));
    sum(left) + sum(right)
}

/// The largest element, or NaN if there is one; `None` if there are none.
pub(crate) fn max<A: Real>(x: &[A]) -> Option<A> {
    let first = *x.first()?;
    match x.len() {
        0..8 => Some(x.iter().fold(first, |max, x| larger(max, *x))),
        _ => Some(max_by_lanes(x, first)),
    }
}

/// The first largest element of a row and its index; a NaN counts as largest. `block(i, x)` sets
/// `x` to the elements from `i` on. −∞ and 0 for an empty row.
pub(crate) fn first_largest<A: Real>(
    len: usize,
    mut block: impl FnMut(usize, &mut [A]),
) -> (A, usize) {
    let mut buffer = [A::ZERO; BLOCK];
    let mut found = (A::of(f64::NEG_INFINITY), 0);
    for first in (0..len).step_by(BLOCK) {
        let x = &mut buffer[..BLOCK.min(len - first)];
        block(first, x);
        let Some(largest) = max(x) else { continue };
        let nan = |x: A| x.to_f64().is_nan();
        if largest > found.0 || nan(largest) && !nan(found.0) {
            let at = x.iter().position(|x| *x == largest || nan(*x));
            found = (largest, first + at.unwrap_or(0));
        }
    }
    found
}

/// `Σ a·b` of two slices of the same length; the error grows as that of [`sum`].
pub(crate) fn dot<A: Real>(a: &[A], b: &[A]) -> A {
    const LEAF: usize = 4096;
    if a.len() <= LEAF {
        return dot_by_lanes(a, b);
    }
    let half = (a.len() / 2).next_multiple_of(LANES);
    dot(&a[..half], &b[..half]) + dot(&a[half..], &b[half..])
}

/// The larger; NaN if either is.
#[inline(always)]
pub(crate) fn larger<A: Real>(a: A, b: A) -> A {
    // Comparisons with NaN are false: a new NaN is taken, and an old one stays.
    #[allow(clippy::eq_op)]
    if b > a || b != b { b } else { a }
}

/// The smaller; NaN if either is.
#[inline(always)]
fn smaller<A: Real>(a: A, b: A) -> A {
    #[allow(clippy::eq_op)]
    if b < a || b != b { b } else { a }
}

/// What elements become, as a type.
trait Combine {
    /// Of two.
    fn of<A: Real>(a: A, b: A) -> A;

    /// Of `acc` and the element `i` of several rows, in their order.
    #[inline(always)]
    fn of_rows<A: Real>(acc: A, rows: &[&[A]; TOGETHER], i: usize) -> A {
        rows.iter().fold(acc, |acc, row| Self::of(acc, row[i]))
    }
}

struct Larger;
impl Combine for Larger {
    #[inline(always)]
    fn of<A: Real>(a: A, b: A) -> A {
        larger(a, b)
    }

    #[inline(always)]
    fn of_rows<A: Real>(acc: A, rows: &[&[A]; TOGETHER], i: usize) -> A {
        let found = rows.iter().fold(acc, |a, row| if row[i] > a { row[i] } else { a });
        or_nan(rows, i, found)
    }
}

struct Smaller;
impl Combine for Smaller {
    #[inline(always)]
    fn of<A: Real>(a: A, b: A) -> A {
        smaller(a, b)
    }

    #[inline(always)]
    fn of_rows<A: Real>(acc: A, rows: &[&[A]; TOGETHER], i: usize) -> A {
        let found = rows.iter().fold(acc, |a, row| if row[i] < a { row[i] } else { a });
        or_nan(rows, i, found)
    }
}

/// NaN if the element `i` of a row is, or else `found`. One comparison sees whether either of two
/// numbers is NaN: in all, that takes fewer instructions than [`larger`] for each.
#[inline(always)]
fn or_nan<A: Real>(rows: &[&[A]; TOGETHER], i: usize, found: A) -> A {
    #[allow(clippy::eq_op)]
    let nan = rows.iter().fold(false, |nan, row| nan | (row[i] != row[i]));
    if nan { A::of(f64::NAN) } else { found }
}

struct Plus;
impl Combine for Plus {
    #[inline(always)]
    fn of<A: Real>(a: A, b: A) -> A {
        a + b
    }
}

/// The sum of the lanes, whose number is a power of two, by halves.
#[inline(always)]
pub(crate) fn join<A: Real, const N: usize>(mut lanes: [A; N]) -> A {
    let mut width = N / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `f(lane, x)` for each element, with [`LANES`] lanes that take turns.
#[inline(always)]
pub(crate) fn by_lanes<A: Copy, L: Copy>(x: &[A], start: L, f: impl Fn(L, A) -> L) -> [L; LANES] {
    let mut lanes = [start; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, *x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, *x);
    }
    lanes
}

vectorized! {
    fn sum_by_lanes<I: Isa, A: Real>(x: &[A]) -> A {
        join(by_lanes(x, A::ZERO, |sum, x| sum + x))
    }

    fn dot_by_lanes<I: Isa, A: Real>(a: &[A], b: &[A]) -> A {
        let mut lanes = [A::ZERO; LANES];
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            lanes = std::array::from_fn(|i| a[i].fma::<I>(b[i], lanes[i]));
        }
        for i in 0..a_rest.len().min(b_rest.len()) {
            lanes[i] = a_rest[i].fma::<I>(b_rest[i], lanes[i]);
        }
        join(lanes)
    }

    fn merge_row<I: Isa, F: Combine, A: Real>(acc: &mut [A], x: &[A]) {
        acc.iter_mut().zip(x).for_each(|(acc, x)| *acc = F::of(*acc, *x));
    }

    fn merge_rows<I: Isa, F: Combine, A: Real>(acc: &mut [A], rows: [&[A]; TOGETHER]) {
        let rows = rows.map(|row| &row[..acc.len()]);
        for (i, acc) in acc.iter_mut().enumerate() {
            *acc = F::of_rows(*acc, &rows, i);
        }
    }

    /// The smallest element, or NaN if there is one; `first` if there are none.
    fn min<I: Isa, A: Real>(x: &[A], first: A) -> A {
        by_lanes(x, first, smaller).into_iter().fold(first, smaller)
    }

    fn max_by_lanes<I: Isa, A: Real>(x: &[A], first: A) -> A {
        by_lanes(x, first, larger).into_iter().fold(first, larger)
    }
}

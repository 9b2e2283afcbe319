//! Sums and maxima of slices, in an order that depends on their length only.

use super::isa::vectorized;
use crate::dtype::Real;

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

/// Elements of a block of [`first_largest`].
pub(crate) const BLOCK: usize = 1024;

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

vectorized! {
    fn sum_by_lanes<I: Isa, A: Real>(x: &[A]) -> A {
        let mut lanes = [A::ZERO; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane += *x;
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += *x;
        }
        join(lanes)
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

    fn max_by_lanes<I: Isa, A: Real>(x: &[A], first: A) -> A {
        let mut lanes = [first; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane = larger(*lane, *x);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane = larger(*lane, *x);
        }
        lanes.into_iter().fold(first, larger)
    }

    /// `to += factor·x`, element by element.
    pub(crate) fn add_scaled<I: Isa, A: Real>(to: &mut [A], factor: A, x: &[A]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to = factor.fma::<I>(*x, *to);
        }
    }

    /// `to += x`, element by element.
    pub(crate) fn add<I: Isa, A: Real>(to: &mut [A], x: &[A]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to += *x;
        }
    }

    /// `to = to·x`, element by element.
    pub(crate) fn multiply<I: Isa, A: Real>(to: &mut [A], x: &[A]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to *= *x;
        }
    }
}

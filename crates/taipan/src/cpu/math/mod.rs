//! Elementary functions that vectorise, of known accuracy.
//!
//! Each is a scalar function without branches, calls, tables or conversions from floating point
//! to integers, so that a loop over it inside a vectorized function becomes vector code. In
//! `f32` all are within 2 ulp of the true value, with or without fused multiply-add: this was
//! checked for each of the 2³² arguments, and the tests check a sample. In `f64` they are within
//! 4 ulp on the sample of the tests; there the logarithms and `erf` are calls of `libm`, which do
//! not vectorise.
//!
//! NaN in gives NaN out: for this, values are clamped by `if x > high { high } else { x }`, which
//! keeps NaN, and never by `min` and `max`, which drop it.
//!
//! The polynomials come from `scripts/fit_math.py`.

mod f32;
mod f64;
#[cfg(test)]
mod tests;

use super::isa::Isa;

/// Elementary functions, written so that a loop over them vectorises.
pub(crate) trait Math: Sized + Copy {
    /// eˣ.
    fn exp<I: Isa>(self) -> Self;
    /// 2ˣ as 2ⁿ·(1 + m) with |m| < ½, the pair of 2ⁿ and m, from which 2ˣ - 1 comes as easily.
    /// Where 2ˣ is less than the least normal number, 2ⁿ is 0; where it is close to the greatest,
    /// infinite.
    fn exp2_parts<I: Isa>(self) -> (Self, Self);
    /// 2ˣ for x ≤ 0; 0 where that is less than the least normal number.
    fn exp2_nonpositive<I: Isa>(self) -> Self;
    /// eˣ - 1.
    fn exp_m1<I: Isa>(self) -> Self;
    /// The natural logarithm: -∞ of zero, NaN of what is less.
    fn ln<I: Isa>(self) -> Self;
    /// ln(1 + x).
    fn ln_1p<I: Isa>(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh<I: Isa>(self) -> Self;
    /// 1 / (1 + e⁻ˣ).
    fn sigmoid<I: Isa>(self) -> Self;
    /// ln(1 + eˣ).
    fn softplus<I: Isa>(self) -> Self;
    /// The error function.
    fn erf<I: Isa>(self) -> Self;
    /// `self * b + c`, rounded once where the instruction set can.
    fn fma<I: Isa>(self, b: Self, c: Self) -> Self;
}

/// c₀ + c₁x + c₂x² + … given `square` = x²: Horner's rule in x² over the pairs c₀ + c₁x,
/// c₂ + c₃x, …, a chain half as long as that of Horner's rule in x.
#[inline(always)]
fn polynomial<I: Isa, T: Math, const N: usize>(x: T, square: T, c: [T; N]) -> T {
    let mut i = N - 1;
    let mut sum = c[i];
    if i % 2 == 1 {
        i -= 1;
        sum = sum.fma::<I>(x, c[i]);
    }
    while i > 0 {
        i -= 2;
        sum = sum.fma::<I>(square, c[i + 1].fma::<I>(x, c[i]));
    }
    sum
}

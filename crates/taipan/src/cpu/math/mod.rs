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

#[cfg(test)]
mod tests;

use super::isa::Isa;

/// What the exponentials of both types are made of, from the constants of a module.
macro_rules! reduced_exponential {
    ($t:ty, $bits:ty) => {
        /// Added to a number far smaller, rounds it to an integer and leaves that in the low bits.
        const ROUND: $t = 1.5 / <$t>::EPSILON;

        /// x = n·ln 2 + r with n an integer and |r| ≤ ln(2)/2, as r and the integer n + `bias`, of
        /// which only the bits of a significand but one mean anything.
        #[inline(always)]
        fn reduce<I: Isa>(x: $t, bias: $t) -> ($bits, $t) {
            let shifted = x.fma::<I>(LOG2_E, ROUND + bias);
            let n = shifted - (ROUND + bias);
            let r = n.fma::<I>(-LN2_LOW, n.fma::<I>(-LN2_HIGH, x));
            (shifted.to_bits(), r)
        }

        /// 2ⁿ of the biased exponent n + `BIAS`, in the low bits.
        #[inline(always)]
        fn pow2(biased: $bits) -> $t {
            <$t>::from_bits(biased << (<$t>::MANTISSA_DIGITS - 1))
        }

        /// eʳ - 1 for |r| ≤ ln(2)/2.
        #[inline(always)]
        fn exp_m1_reduced<I: Isa>(r: $t) -> $t {
            let square = r * r;
            square.fma::<I>(polynomial::<I, _, _>(r, square, EXP), r)
        }

        /// 2ᵏ·eˣ, if that is neither too large nor subnormal.
        #[inline(always)]
        fn exp_scaled<I: Isa>(x: $t, k: $t) -> $t {
            let (n, r) = reduce::<I>(x, BIAS + k);
            let power = pow2(n);
            power.fma::<I>(exp_m1_reduced::<I>(r), power)
        }

        /// `UP`·eˣ for x ≤ 0: the factor keeps it from being subnormal.
        #[inline(always)]
        fn exp_nonpositive_up<I: Isa>(x: $t) -> $t {
            exp_scaled::<I>(if x < EXP_ZERO { EXP_ZERO } else { x }, UP_EXPONENT)
        }
    };
}

/// The functions of [`Math`] that are the same formula in both types.
macro_rules! exponentials {
    ($t:ty) => {
        /// 2ⁿ·eʳ, with 2ⁿ in two factors: it may be too large for one, or the result subnormal.
        #[inline(always)]
        fn exp<I: Isa>(self) -> $t {
            let x = if self > EXP_INFINITE { EXP_INFINITE } else { self };
            let x = if x < EXP_ZERO { EXP_ZERO } else { x };
            let (n, r) = reduce::<I>(x, 2.0 * BIAS);
            let half = n >> 1;
            let power = pow2(half);
            power.fma::<I>(exp_m1_reduced::<I>(r), power) * pow2(n.wrapping_sub(half))
        }

        /// 2ⁿ·(eʳ - 1) + (2ⁿ - 1), halved so that 2ⁿ does not overflow before the result does.
        #[inline(always)]
        fn exp_m1<I: Isa>(self) -> $t {
            let x = if self > EXP_INFINITE { EXP_INFINITE } else { self };
            let x = if x < EXP_M1_FLAT { EXP_M1_FLAT } else { x };
            let (n, r) = reduce::<I>(x, BIAS - 1.0);
            let power = pow2(n);
            let half = power.fma::<I>(exp_m1_reduced::<I>(r), power - 0.5);
            // Keeps the sign of zero, and subnormal numbers from being halved.
            if x.abs() < <$t>::EPSILON / 4.0 { x } else { 2.0 * half }
        }

        /// (1 - e) / (1 + e) where e = e⁻²ˣ = 2ⁿ·eʳ, for x ≥ 0; it is odd. Each of the two is made
        /// from 2ⁿ·(eʳ - 1), so that it is rounded once.
        #[inline(always)]
        fn tanh<I: Isa>(self) -> $t {
            let x = self.abs();
            let x = if x > TANH_FLAT { TANH_FLAT } else { x };
            let (n, r) = reduce::<I>(-2.0 * x, BIAS);
            let power = pow2(n);
            let exp_m1 = exp_m1_reduced::<I>(r);
            let negated = power.fma::<I>(exp_m1, power - 1.0);
            let above = power.fma::<I>(exp_m1, power + 1.0);
            (negated / above).copysign(self)
        }

        /// 1 - y for x ≥ 0 and e - e·y for x < 0, where e = e^-|x| and y = e / (1 + e): where e is
        /// small, and 1 + e a coarse rounding, y counts for little.
        #[inline(always)]
        fn sigmoid<I: Isa>(self) -> $t {
            let e_up = exp_nonpositive_up::<I>(-self.abs());
            let y = e_up / (UP + e_up);
            let scale = if self < 0.0 { e_up / UP } else { 1.0 };
            (-scale).fma::<I>(y, scale)
        }

        #[inline(always)]
        fn fma<I: Isa>(self, b: $t, c: $t) -> $t {
            if I::FMA { self.mul_add(b, c) } else { self * b + c }
        }
    };
}

mod f32;
mod f64;

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
    /// The largest angle that [`sin`](Math::sin) and [`cos`](Math::cos) take with fused multiply-add.
    const FAST_ANGLE: f64;
    /// The sine, of an angle within ±`FAST_ANGLE`; without fused multiply-add, of any, but in `f32`
    /// NaN beyond ±2³⁰.
    fn sin<I: Isa>(self) -> Self;
    /// The cosine, with the same limits.
    fn cos<I: Isa>(self) -> Self;
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

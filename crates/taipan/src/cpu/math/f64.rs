//! Double precision: the formulas of the single one where they vectorise, `libm` elsewhere.

use std::f64::consts::LOG2_E;

use super::{Math, polynomial};
use crate::cpu::isa::Isa;

/// ln 2 to 42 bits: its product with an integer below 2¹¹ is exact.
const LN2_HIGH: f64 = 3048493539143.0 / (1_u64 << 42) as f64;
/// ln 2 - `LN2_HIGH`.
const LN2_LOW: f64 = 5.497923018708371e-14;

/// Added to a number far smaller, rounds it to an integer and leaves that in the low bits.
const ROUND: f64 = 1.5 * (1_u64 << 52) as f64;

/// The bias of the exponent.
const BIAS: f64 = 1023.0;

/// p of eʳ = 1 + r + r²·p(r) for |r| ≤ ln(2)/2: minimax relative to eʳ - 1, error 2⁻⁵⁴·⁸.
const EXP: [f64; 10] = [
    0.5,
    0.16666666666666602,
    0.04166666666661995,
    0.008333333333387712,
    0.0013888888920525698,
    0.0001984126971157378,
    2.4801516321527178e-05,
    2.755742235009016e-06,
    2.7622239601180206e-07,
    2.504700343023532e-08,
];

/// x = n·ln 2 + r with n an integer and |r| ≤ ln(2)/2, as r and the integer n + `bias`, of which
/// only the low 51 bits mean anything.
#[inline(always)]
fn reduce<I: Isa>(x: f64, bias: f64) -> (u64, f64) {
    let shifted = x.fma::<I>(LOG2_E, ROUND + bias);
    let n = shifted - (ROUND + bias);
    let r = n.fma::<I>(-LN2_LOW, n.fma::<I>(-LN2_HIGH, x));
    (shifted.to_bits(), r)
}

/// 2ⁿ of the biased exponent n + `BIAS`, in the low 12 bits.
#[inline(always)]
fn pow2(biased: u64) -> f64 {
    f64::from_bits(biased << 52)
}

/// eʳ - 1 for |r| ≤ ln(2)/2.
#[inline(always)]
fn exp_m1_reduced<I: Isa>(r: f64) -> f64 {
    let square = r * r;
    square.fma::<I>(polynomial::<I, _, _>(r, square, EXP), r)
}

/// eˣ for x ≤ 0. The last multiplication is the one that may round to a subnormal number.
#[inline(always)]
fn exp_nonpositive<I: Isa>(x: f64) -> f64 {
    const DOWN: f64 = 1.0 / (1_u64 << 54) as f64;
    let x = if x < -746.0 { -746.0 } else { x };
    let (n, r) = reduce::<I>(x, BIAS + 54.0);
    let power = pow2(n);
    power.fma::<I>(exp_m1_reduced::<I>(r), power) * DOWN
}

impl Math for f64 {
    /// 2ⁿ·eʳ, multiplied by two halves of 2ⁿ: the result may be subnormal, or 2ⁿ too large.
    #[inline(always)]
    fn exp<I: Isa>(self) -> f64 {
        let x = if self > 710.0 { 710.0 } else { self };
        let x = if x < -746.0 { -746.0 } else { x };
        let (n, r) = reduce::<I>(x, 2.0 * BIAS);
        let half = n >> 1;
        let power = pow2(half);
        power.fma::<I>(exp_m1_reduced::<I>(r), power) * pow2(n.wrapping_sub(half))
    }

    /// 2ⁿ·(eʳ - 1) + (2ⁿ - 1), halved so that 2ⁿ does not overflow before the result does.
    #[inline(always)]
    fn exp_m1<I: Isa>(self) -> f64 {
        let x = if self > 710.0 { 710.0 } else { self };
        let x = if x < -40.0 { -40.0 } else { x };
        let (n, r) = reduce::<I>(x, BIAS - 1.0);
        let power = pow2(n);
        let half = power.fma::<I>(exp_m1_reduced::<I>(r), power - 0.5);
        // Keeps the sign of zero, and subnormal numbers from being halved.
        if x.abs() < f64::EPSILON / 4.0 { x } else { 2.0 * half }
    }

    #[inline(always)]
    fn ln<I: Isa>(self) -> f64 {
        libm::log(self)
    }

    #[inline(always)]
    fn ln_1p<I: Isa>(self) -> f64 {
        libm::log1p(self)
    }

    /// (1 - e) / (1 + e) where e = e⁻²ˣ = 2ⁿ·eʳ, for x ≥ 0; it is odd.
    #[inline(always)]
    fn tanh<I: Isa>(self) -> f64 {
        let x = self.abs();
        let x = if x > 20.0 { 20.0 } else { x };
        let (n, r) = reduce::<I>(-2.0 * x, BIAS);
        let power = pow2(n);
        let exp_m1 = exp_m1_reduced::<I>(r);
        let below = power.fma::<I>(exp_m1, power - 1.0);
        let above = power.fma::<I>(exp_m1, power + 1.0);
        (below / above).copysign(self)
    }

    /// 1 - e / (1 + e) for x ≥ 0 and e - e·e / (1 + e) for x < 0, where e = e^-|x|.
    #[inline(always)]
    fn sigmoid<I: Isa>(self) -> f64 {
        let e = exp_nonpositive::<I>(-self.abs());
        let scale = if self < 0.0 { e } else { 1.0 };
        (-scale).fma::<I>(e / (1.0 + e), scale)
    }

    /// max(x, 0) + ln(1 + e^-|x|).
    #[inline(always)]
    fn softplus<I: Isa>(self) -> f64 {
        let positive = if self > 0.0 { self } else { 0.0 };
        positive + libm::log1p(exp_nonpositive::<I>(-self.abs()))
    }

    #[inline(always)]
    fn erf<I: Isa>(self) -> f64 {
        libm::erf(self)
    }

    #[inline(always)]
    fn fma<I: Isa>(self, b: f64, c: f64) -> f64 {
        if I::FMA { self.mul_add(b, c) } else { self * b + c }
    }
}

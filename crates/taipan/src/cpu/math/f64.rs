//! Double precision: the formulas of the single one where they vectorise, `libm` elsewhere.

use std::f64::consts::{LN_2, LOG2_E};

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

/// 2⁵⁴, which makes any subnormal number normal, and loses nothing on the way back.
const UP: f64 = (1_u64 << 54) as f64;

/// p of eʳ - 1 = r + r²·p(r) for |r| ≤ ln(2)/2: minimax but for the ½, relative error 2⁻⁵⁵.
const EXP: [f64; 10] = [
    0.5,
    0.16666666666666596,
    0.04166666666661616,
    0.008333333333392132,
    0.0013888888922432051,
    0.00019841269703729962,
    2.4801513497019694e-05,
    2.7557426488949185e-06,
    2.762351934598039e-07,
    2.5046888166535793e-08,
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

/// `UP`·eˣ for x ≤ 0: the factor keeps it from being subnormal.
#[inline(always)]
fn exp_nonpositive_up<I: Isa>(x: f64) -> f64 {
    let x = if x < -746.0 { -746.0 } else { x };
    let (n, r) = reduce::<I>(x, BIAS + 54.0);
    let power = pow2(n);
    power.fma::<I>(exp_m1_reduced::<I>(r), power)
}

/// 2ˣ as the product of 2ⁿ and 1 + m, the two of them, for x from -1023 to 1024.
#[inline(always)]
fn exp2_factors<I: Isa>(x: f64) -> (f64, f64) {
    let shifted = x + (ROUND + BIAS);
    let r = x - (shifted - (ROUND + BIAS));
    (pow2(shifted.to_bits()), exp_m1_reduced::<I>(r * LN_2))
}

impl Math for f64 {
    #[inline(always)]
    fn exp<I: Isa>(self) -> f64 {
        let x = if self > 710.0 { 710.0 } else { self };
        let x = if x < -746.0 { -746.0 } else { x };
        let (n, r) = reduce::<I>(x, 2.0 * BIAS);
        let half = n >> 1;
        let power = pow2(half);
        power.fma::<I>(exp_m1_reduced::<I>(r), power) * pow2(n.wrapping_sub(half))
    }

    #[inline(always)]
    fn exp2_parts<I: Isa>(self) -> (f64, f64) {
        let x = if self > 1024.0 { 1024.0 } else { self };
        let x = if x < -1023.0 { -1023.0 } else { x };
        exp2_factors::<I>(x)
    }

    #[inline(always)]
    fn exp2_nonpositive<I: Isa>(self) -> f64 {
        let x = if self < -1023.0 { -1023.0 } else { self };
        let (power, m) = exp2_factors::<I>(x);
        (1.0 + m) * power
    }

    #[inline(always)]
    fn exp_m1<I: Isa>(self) -> f64 {
        let x = if self > 710.0 { 710.0 } else { self };
        let x = if x < -40.0 { -40.0 } else { x };
        let (n, r) = reduce::<I>(x, BIAS - 1.0);
        let power = pow2(n);
        let half = power.fma::<I>(exp_m1_reduced::<I>(r), power - 0.5);
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

    #[inline(always)]
    fn tanh<I: Isa>(self) -> f64 {
        let x = self.abs();
        let x = if x > 20.0 { 20.0 } else { x };
        let (n, r) = reduce::<I>(-2.0 * x, BIAS);
        let power = pow2(n);
        let exp_m1 = exp_m1_reduced::<I>(r);
        let negated = power.fma::<I>(exp_m1, power - 1.0);
        let above = power.fma::<I>(exp_m1, power + 1.0);
        (negated / above).copysign(self)
    }

    #[inline(always)]
    fn sigmoid<I: Isa>(self) -> f64 {
        let e_up = exp_nonpositive_up::<I>(-self.abs());
        let y = e_up / (UP + e_up);
        let scale = if self < 0.0 { e_up / UP } else { 1.0 };
        (-scale).fma::<I>(y, scale)
    }

    /// max(x, 0) + ln(1 + e^-|x|).
    #[inline(always)]
    fn softplus<I: Isa>(self) -> f64 {
        let positive = if self > 0.0 { self } else { 0.0 };
        positive + libm::log1p(exp_nonpositive_up::<I>(-self.abs()) / UP)
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

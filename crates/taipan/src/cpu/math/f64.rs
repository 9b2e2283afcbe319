//! Double precision: the formulas of the single one where they vectorise, `libm` elsewhere.

use std::f64::consts::{LN_2, LOG2_E};

use super::{Math, polynomial};
use crate::cpu::isa::Isa;

/// ln 2 to 42 bits: its product with an integer below 2¹¹ is exact.
const LN2_HIGH: f64 = 3048493539143.0 / (1_u64 << 42) as f64;
/// ln 2 - `LN2_HIGH`.
const LN2_LOW: f64 = 5.497923018708371e-14;

/// The bias of the exponent.
const BIAS: f64 = 1023.0;

/// 2⁵⁴, which makes any subnormal number normal, and loses nothing on the way back.
const UP: f64 = (1_u64 << 54) as f64;
const UP_EXPONENT: f64 = 54.0;

/// Where eˣ is infinite and 0, eˣ - 1 is -1 and tanh x is 1, after rounding. At `EXP_ZERO` 2ⁿ is less
/// than the least normal number even when it is scaled up, and so exactly 0: processors are slow
/// where a product is subnormal, or is rounded to 0.
const EXP_INFINITE: f64 = 710.0;
const EXP_ZERO: f64 = -746.51;
const EXP_M1_FLAT: f64 = -40.0;
const TANH_FLAT: f64 = 20.0;

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

reduced_exponential!(f64, u64);

/// 2ˣ as the product of 2ⁿ and 1 + m, the two of them, for x from -1023 to 1024.
#[inline(always)]
fn exp2_factors<I: Isa>(x: f64) -> (f64, f64) {
    let shifted = x + (ROUND + BIAS);
    let r = x - (shifted - (ROUND + BIAS));
    (pow2(shifted.to_bits()), exp_m1_reduced::<I>(r * LN_2))
}

impl Math for f64 {
    exponentials!(f64);

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
    fn ln<I: Isa>(self) -> f64 {
        libm::log(self)
    }

    #[inline(always)]
    fn ln_1p<I: Isa>(self) -> f64 {
        libm::log1p(self)
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

    const FAST_ANGLE: f64 = f64::INFINITY;

    #[inline(always)]
    fn sin<I: Isa>(self) -> f64 {
        libm::sin(self)
    }

    #[inline(always)]
    fn cos<I: Isa>(self) -> f64 {
        libm::cos(self)
    }
}

//! Single precision.

use std::f32::consts::{LOG2_E, SQRT_2};

use super::{Math, polynomial};
use crate::cpu::isa::Isa;

/// ln 2 to 16 bits: its product with an integer below 2⁸ is exact.
const LN2_HIGH: f32 = 45426.0 / 65536.0;
/// ln 2 - `LN2_HIGH`.
const LN2_LOW: f32 = 1.4286068e-6;

/// The bias of the exponent.
const BIAS: f32 = 127.0;

/// 2²⁴, which makes any subnormal number normal, and loses nothing on the way back.
const UP: f32 = (1 << 24) as f32;
const UP_EXPONENT: f32 = 24.0;

/// Where eˣ is infinite and 0, eˣ - 1 is -1 and tanh x is 1, after rounding. At `EXP_ZERO` 2ⁿ is less
/// than the least normal number even when it is scaled up, and so exactly 0: processors are slow
/// where a product is subnormal, or is rounded to 0.
const EXP_INFINITE: f32 = 89.0;
const EXP_ZERO: f32 = -104.66;
const EXP_M1_FLAT: f32 = -18.0;
const TANH_FLAT: f32 = 10.0;

/// p of eʳ - 1 = r + r²·p(r) for |r| ≤ ln(2)/2: minimax but for the ½, relative error 2⁻²⁵·⁹.
const EXP: [f32; 5] = [0.5, 0.16666543, 0.041666858, 0.008366693, 0.001389888];

/// p of 2ʳ - 1 = r·p(r) for |r| ≤ ½: that of eʳ in r·ln 2.
const EXP2: [f32; 6] = {
    let mut p = [1.0, EXP[0], EXP[1], EXP[2], EXP[3], EXP[4]];
    let (mut k, mut power) = (0, std::f64::consts::LN_2);
    while k < p.len() {
        p[k] = (p[k] as f64 * power) as f32;
        power *= std::f64::consts::LN_2;
        k += 1;
    }
    p
};

/// p of ln(1+f) = f + f²·p(f) for √½ ≤ 1+f ≤ √2: minimax but for the -½, relative error 2⁻²⁷·³.
const LN: [f32; 9] = [
    -0.5,
    0.3333333,
    -0.25000823,
    0.20001234,
    -0.16623299,
    0.14201544,
    -0.1316057,
    0.12763385,
    -0.076357506,
];

/// p of erf(x) = x + x·p(x²) for |x| ≤ 0.9: minimax, relative error 2⁻²⁵·¹.
const ERF_SMALL: [f32; 6] =
    [0.12837915, -0.37612525, 0.11282141, -0.026778908, 0.0050119627, -0.000609036];

/// p of erf(x) = 1 - exp(p(x)) for x from 0.9 to 4.1: minimax, error 2⁻²⁴·⁸.
const ERF_LARGE: [f32; 6] =
    [-0.0018776538, -1.1201907, -0.65075535, -0.09110911, 0.015579027, -0.0012515591];

/// p of sin r = r + r³·p(r²) for |r| ≤ π/4: minimax, relative error 2⁻²⁶·⁸.
const SIN: [f32; 3] = [-0.16666655, 0.00833216, -0.00019515198];

/// p of cos r = 1 - r²/2 + r⁴·p(r²) for |r| ≤ π/4: minimax, relative error 2⁻³².
const COS: [f32; 3] = [0.041666646, -0.0013887315, 2.443306e-05];

reduced_exponential!(f32, u32);

/// An angle as n·π/2 + r, with n the integer nearest to x·2/π, of which only the last two bits mean
/// anything, and |r| ≤ π/4. With fused multiply-add, and up to ±[`Math::FAST_ANGLE`], π/2 is in three
/// parts of 24 bits: the first product and difference are exact. All parts are positive, which
/// keeps the sign of x = -0.
#[inline(always)]
fn reduce_angle<I: Isa>(x: f32) -> (u32, f32) {
    #[allow(clippy::excessive_precision, clippy::approx_constant)]
    const HALF_PI: [f32; 3] = [1.5707962513, 7.549789416e-8, 5.390303e-15];
    if !I::FMA {
        return reduce_angle_f64(x);
    }
    let shifted = x.fma::<I>(std::f32::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let r = n.fma::<I>(-HALF_PI[1], n.fma::<I>(-HALF_PI[0], x));
    let r = n.fma::<I>(-HALF_PI[2], r);
    (shifted.to_bits(), r)
}

/// The same in f64, from a π/2 in two parts, of which the first has 34 bits: while n has 19, its
/// product is exact, and beyond that its error is 2⁻⁵³·x. NaN beyond ±2³⁰.
#[inline(always)]
fn reduce_angle_f64(x: f32) -> (u32, f32) {
    const ROUND: f64 = 1.5 / f64::EPSILON;
    const HALF_PI_HIGH: f64 = 13493037704.0 / (1_u64 << 33) as f64;
    const HALF_PI_LOW: f64 = 6.077100506506192e-11;
    let wide = x as f64;
    let shifted = wide * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = ((wide - n * HALF_PI_HIGH) - n * HALF_PI_LOW) as f32;
    (shifted.to_bits() as u32, if x.abs() <= (1 << 30) as f32 { r } else { f32::NAN })
}

/// The sine of x + quarters·π/2: ±sin or ±cos of r, by the last two bits of n + quarters.
#[inline(always)]
fn sin_quarters<I: Isa>(x: f32, quarters: u32) -> f32 {
    let (n, r) = reduce_angle::<I>(x);
    let square = r * r;
    let fourth = square * square;
    let sin = r * square.fma::<I>(polynomial::<I, _, _>(square, fourth, SIN), 1.0);
    let cos = fourth.fma::<I>(polynomial::<I, _, _>(square, fourth, COS), 1.0 - 0.5 * square);
    let quadrant = n.wrapping_add(quarters);
    let value = if quadrant & 1 == 0 { sin } else { cos };
    f32::from_bits(value.to_bits() ^ (quadrant & 2) << 30)
}

/// 2ˣ as the product of 2ⁿ and 1 + r·p, the three of them, for x from -127 to 128.
#[inline(always)]
fn exp2_factors<I: Isa>(x: f32) -> (f32, f32, f32) {
    let shifted = x + (ROUND + BIAS);
    let r = x - (shifted - (ROUND + BIAS));
    (pow2(shifted.to_bits()), r, polynomial::<I, _, _>(r, r * r, EXP2))
}

/// k such that 2⁻ᵏ·x is from √½ to √2, for normal x > 0.
#[inline(always)]
fn exponent(x: f32) -> i32 {
    const SQRT_HALF: u32 = std::f32::consts::FRAC_1_SQRT_2.to_bits();
    x.to_bits().wrapping_sub(SQRT_HALF) as i32 >> 23
}

/// k·ln 2 + ln(1+f) for √½ ≤ 1+f ≤ √2, summed from the smallest term to the largest.
#[inline(always)]
fn ln_scaled<I: Isa>(k: f32, f: f32) -> f32 {
    let square = f * f;
    let tail = polynomial::<I, _, _>(f, square, LN);
    let ln_1p = square.fma::<I>(tail, k * LN2_LOW) + f;
    k.fma::<I>(LN2_HIGH, ln_1p)
}

impl Math for f32 {
    exponentials!(f32);

    #[inline(always)]
    fn exp2_parts<I: Isa>(self) -> (f32, f32) {
        let x = if self > 128.0 { 128.0 } else { self };
        let x = if x < -127.0 { -127.0 } else { x };
        let (power, r, p) = exp2_factors::<I>(x);
        (power, r * p)
    }

    #[inline(always)]
    fn exp2_nonpositive<I: Isa>(self) -> f32 {
        let x = if self < -127.0 { -127.0 } else { self };
        let (power, r, p) = exp2_factors::<I>(x);
        r.fma::<I>(p, 1.0) * power
    }

    /// k·ln 2 + ln(1+f) where x = 2ᵏ·(1+f).
    #[inline(always)]
    fn ln<I: Isa>(self) -> f32 {
        let subnormal = self < f32::MIN_POSITIVE;
        let x = if subnormal { self * UP } else { self };
        let k = exponent(x);
        let f = f32::from_bits(x.to_bits().wrapping_sub((k << 23) as u32)) - 1.0;
        let k = k as f32 - if subnormal { 24.0 } else { 0.0 };
        let result = ln_scaled::<I>(k, f);
        // ln(∞) = ∞, and NaN stays.
        let result = if self < f32::INFINITY { result } else { self };
        let result = if self < 0.0 { f32::NAN } else { result };
        if self == 0.0 { f32::NEG_INFINITY } else { result }
    }

    /// k·ln 2 + ln(1+f) where 1+x = 2ᵏ·(1+f), that is f = 2⁻ᵏ·x + (2⁻ᵏ - 1), which is rounded
    /// only once; k is that of the rounded 1+x.
    #[inline(always)]
    fn ln_1p<I: Isa>(self) -> f32 {
        let k = exponent(1.0 + self);
        // 2⁻ᵏ, which is subnormal for the largest numbers.
        let scale = 0.25 * pow2(129_i32.wrapping_sub(k) as u32);
        let f = self.fma::<I>(scale, scale - 1.0);
        let result = ln_scaled::<I>(k as f32, f).copysign(self);
        // ln(∞) = ∞, and NaN stays.
        let result = if self < f32::INFINITY { result } else { self };
        let result = if self < -1.0 { f32::NAN } else { result };
        if self == -1.0 { f32::NEG_INFINITY } else { result }
    }

    /// max(x, 0) + ln(1 + e) where e = e^-|x|; above √2, 1 + e is halved for the logarithm.
    #[inline(always)]
    fn softplus<I: Isa>(self) -> f32 {
        let e = exp_nonpositive_up::<I>(-self.abs()) / UP;
        let halve = e > SQRT_2 - 1.0;
        let k = if halve { 1.0 } else { 0.0 };
        let f = if halve { 0.5 * e - 0.5 } else { e };
        let positive = if self > 0.0 { self } else { 0.0 };
        positive + ln_scaled::<I>(k, f)
    }

    /// x + x·p(x²) or 1 - exp(p(x)), with the sign of x.
    #[inline(always)]
    fn erf<I: Isa>(self) -> f32 {
        let x = self.abs();
        let x = if x > 4.1 { 4.1 } else { x };
        let square = x * x;
        let small = polynomial::<I, _, _>(square, square * square, ERF_SMALL);
        let small = self.fma::<I>(small, self);
        let large = polynomial::<I, _, _>(x, square, ERF_LARGE);
        let large = 1.0 - exp_scaled::<I>(large, 0.0);
        if x < 0.9 { small } else { large.copysign(self) }
    }

    const FAST_ANGLE: f64 = (1 << 16) as f64;

    #[inline(always)]
    fn sin<I: Isa>(self) -> f32 {
        sin_quarters::<I>(self, 0)
    }

    #[inline(always)]
    fn cos<I: Isa>(self) -> f32 {
        sin_quarters::<I>(self, 1)
    }
}

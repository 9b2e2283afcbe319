//! Single precision.

use std::f32::consts::{LOG2_E, SQRT_2};

use super::{Math, polynomial};
use crate::cpu::isa::Isa;

/// ln 2 to 16 bits: its product with an integer below 2⁸ is exact.
const LN2_HIGH: f32 = 45426.0 / 65536.0;
/// ln 2 - `LN2_HIGH`.
const LN2_LOW: f32 = 1.4286068e-6;

/// Added to a number far smaller, rounds it to an integer and leaves that in the low bits.
const ROUND: f32 = 1.5 * (1 << 23) as f32;

/// The bias of the exponent.
const BIAS: f32 = 127.0;

/// 2²⁴, which makes any subnormal number normal, and loses nothing on the way back.
const UP: f32 = (1 << 24) as f32;

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

/// x = n·ln 2 + r with n an integer and |r| ≤ ln(2)/2, as r and the integer n + `bias`, of which
/// only the low 22 bits mean anything.
#[inline(always)]
fn reduce<I: Isa>(x: f32, bias: f32) -> (u32, f32) {
    let shifted = x.fma::<I>(LOG2_E, ROUND + bias);
    let n = shifted - (ROUND + bias);
    let r = n.fma::<I>(-LN2_LOW, n.fma::<I>(-LN2_HIGH, x));
    (shifted.to_bits(), r)
}

/// 2ⁿ of the biased exponent n + `BIAS`, in the low 9 bits.
#[inline(always)]
fn pow2(biased: u32) -> f32 {
    f32::from_bits(biased << 23)
}

/// eʳ - 1 for |r| ≤ ln(2)/2.
#[inline(always)]
fn exp_m1_reduced<I: Isa>(r: f32) -> f32 {
    let square = r * r;
    square.fma::<I>(polynomial::<I, _, _>(r, square, EXP), r)
}

/// 2ᵏ·eˣ, if that is neither too large nor subnormal.
#[inline(always)]
fn exp_scaled<I: Isa>(x: f32, k: f32) -> f32 {
    let (n, r) = reduce::<I>(x, BIAS + k);
    let power = pow2(n);
    power.fma::<I>(exp_m1_reduced::<I>(r), power)
}

/// `UP`·eˣ for x ≤ 0: the factor keeps it from being subnormal.
#[inline(always)]
fn exp_nonpositive_up<I: Isa>(x: f32) -> f32 {
    let x = if x < -104.0 { -104.0 } else { x };
    exp_scaled::<I>(x, 24.0)
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
    /// 2ⁿ·eʳ, with 2ⁿ in two factors: it may be too large for one, or the result subnormal.
    #[inline(always)]
    fn exp<I: Isa>(self) -> f32 {
        let x = if self > 89.0 { 89.0 } else { self };
        let x = if x < -104.0 { -104.0 } else { x };
        let (n, r) = reduce::<I>(x, 2.0 * BIAS);
        let half = n >> 1;
        let power = pow2(half);
        power.fma::<I>(exp_m1_reduced::<I>(r), power) * pow2(n.wrapping_sub(half))
    }

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

    /// 2ⁿ·(eʳ - 1) + (2ⁿ - 1), halved so that 2ⁿ does not overflow before the result does.
    #[inline(always)]
    fn exp_m1<I: Isa>(self) -> f32 {
        let x = if self > 89.0 { 89.0 } else { self };
        let x = if x < -18.0 { -18.0 } else { x };
        let (n, r) = reduce::<I>(x, BIAS - 1.0);
        let power = pow2(n);
        let half = power.fma::<I>(exp_m1_reduced::<I>(r), power - 0.5);
        // Keeps the sign of zero, and subnormal numbers from being halved.
        if x.abs() < f32::EPSILON / 4.0 { x } else { 2.0 * half }
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

    /// (1 - e) / (1 + e) where e = e⁻²ˣ = 2ⁿ·eʳ, for x ≥ 0; it is odd. Each of the two is made
    /// from 2ⁿ·(eʳ - 1), so that it is rounded once.
    #[inline(always)]
    fn tanh<I: Isa>(self) -> f32 {
        let x = self.abs();
        let x = if x > 10.0 { 10.0 } else { x };
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
    fn sigmoid<I: Isa>(self) -> f32 {
        let e_up = exp_nonpositive_up::<I>(-self.abs());
        let y = e_up / (UP + e_up);
        let scale = if self < 0.0 { e_up / UP } else { 1.0 };
        (-scale).fma::<I>(y, scale)
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

    #[inline(always)]
    fn fma<I: Isa>(self, b: f32, c: f32) -> f32 {
        if I::FMA { self.mul_add(b, c) } else { self * b + c }
    }
}

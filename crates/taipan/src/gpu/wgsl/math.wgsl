// Elementary functions of known accuracy: those of cpu/math/f32.rs. Prepended to a kernel. Every
// name starts with an m, so that none hides a builtin or collides with a name of the kernel.
//
// All are within 4 ulp of the true value, and within 2 where fma() is fused. Hardware that flushes
// subnormal numbers to zero loses these and nothing else. A compiler may assume that there are no
// NaN and no infinities, and may reorder sums. Therefore:
// - NaN and infinities are recognised and made by their bits;
// - numbers are rounded by round(), not by adding and subtracting a large one;
// - what must not be joined with its neighbours, passes through a select() that changes nothing:
//   x + (2ⁿ - 1) must not become (x + 2ⁿ) - 1, nor x - n·high - n·low become x - n·(high + low),
//   which Mesa does, even to fma().

// ln 2 to 16 bits: its product with an integer below 2⁸ is exact.
const M_LN2_HIGH = 45426.0 / 65536.0;
// ln 2 - M_LN2_HIGH.
const M_LN2_LOW = 1.4286068e-6;
const M_LOG2_E = 1.4426950408889634;

// 2²⁴, and its inverse.
const M_UP = 16777216.0;
const M_DOWN = 1.0 / M_UP;

// p of eʳ - 1 = r + r²·p(r) for |r| ≤ ln(2)/2.
const M_EXP = array<f32, 5>(0.5, 0.16666543, 0.041666858, 0.008366693, 0.001389888);

// p of ln(1+f) = f + f²·p(f) for √½ ≤ 1+f ≤ √2.
const M_LN = array<f32, 9>(
    -0.5, 0.3333333, -0.25000823, 0.20001234, -0.16623299,
    0.14201544, -0.1316057, 0.12763385, -0.076357506,
);

// p of sin r = r + r³·p(r²) and of cos r = 1 - r²/2 + r⁴·p(r²), for |r| ≤ π/4.
const M_SIN = array<f32, 3>(-0.16666655, 0.00833216, -0.00019515198);
const M_COS = array<f32, 3>(0.041666646, -0.0013887315, 2.443306e-5);

// p of erf(x) = x + x·p(x²) for |x| ≤ 0.9.
const M_ERF_SMALL = array<f32, 6>(
    0.12837915, -0.37612525, 0.11282141, -0.026778908, 0.0050119627, -0.000609036,
);

// p of erf(x) = 1 - exp(p(x)) for x from 0.9 to 4.1.
const M_ERF_LARGE = array<f32, 6>(
    -0.0018776538, -1.1201907, -0.65075535, -0.09110911, 0.015579027, -0.0012515591,
);

// As bits, because a constant may not be infinite or NaN.
const M_INFINITY = 0x7f800000u;
const M_NEG_INFINITY = 0xff800000u;
const M_NAN = 0x7fc00000u;
const M_SIGN = 0x80000000u;

// y, but x where x is NaN.
fn m_keep_nan(x: f32, y: f32) -> f32 {
    let nan = (bitcast<u32>(x) & ~M_SIGN) > M_INFINITY;
    return bitcast<f32>(select(bitcast<u32>(y), bitcast<u32>(x), nan));
}

// |y| with the sign of x.
fn m_copysign(y: f32, x: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(y) & ~M_SIGN) | (bitcast<u32>(x) & M_SIGN));
}

// 2ⁿ·x, if x and the result are normal numbers.
fn m_shift(x: f32, n: i32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) + (bitcast<u32>(n) << 23u));
}

// 2ⁿ for -126 ≤ n ≤ 127.
fn m_pow2(n: i32) -> f32 {
    return m_shift(1.0, n);
}

// a / b for b not near the ends of the range. Division is within 2.5 ulp only, which a step of
// Newton's method makes about 1.
fn m_divide(a: f32, b: f32) -> f32 {
    let inverse = 1.0 / b;
    let quotient = a * inverse;
    return fma(fma(-quotient, b, a), inverse, quotient);
}

// x = n·ln 2 + r with n an integer and |r| ≤ ln(2)/2.
struct MReduced {
    n: i32,
    r: f32,
}

fn m_reduce(x: f32) -> MReduced {
    let n = round(x * M_LOG2_E);
    let i = i32(n);
    let r = select(fma(n, -M_LN2_HIGH, x), x, i == 0);
    return MReduced(i, fma(n, -M_LN2_LOW, r));
}

// eʳ - 1 for |r| ≤ ln(2)/2.
fn m_exp_m1_reduced(r: f32) -> f32 {
    let square = r * r;
    var p = M_EXP[4];
    p = fma(p, square, fma(M_EXP[3], r, M_EXP[2]));
    p = fma(p, square, fma(M_EXP[1], r, M_EXP[0]));
    return fma(square, p, r);
}

// 2ᵏ·eˣ, if that is neither too large nor subnormal.
fn m_exp_scaled(x: f32, k: i32) -> f32 {
    let reduced = m_reduce(x);
    return m_pow2(reduced.n + k) * (1.0 + m_exp_m1_reduced(reduced.r));
}

// M_UP·eˣ for x ≤ 0: the factor keeps it from being subnormal.
fn m_exp_nonpositive_up(x: f32) -> f32 {
    return m_exp_scaled(select(x, -104.0, x < -104.0), 24);
}

// k such that 2⁻ᵏ·x is from √½ to √2, for normal x > 0.
fn m_exponent(x: f32) -> i32 {
    const SQRT_HALF = 0x3f3504f3u;
    return bitcast<i32>(bitcast<u32>(x) - SQRT_HALF) >> 23u;
}

// k·ln 2 + ln(1+f) for √½ ≤ 1+f ≤ √2, summed from the smallest term to the largest.
fn m_ln_scaled(k: f32, f: f32) -> f32 {
    let square = f * f;
    var p = M_LN[8];
    p = fma(p, square, fma(M_LN[7], f, M_LN[6]));
    p = fma(p, square, fma(M_LN[5], f, M_LN[4]));
    p = fma(p, square, fma(M_LN[3], f, M_LN[2]));
    p = fma(p, square, fma(M_LN[1], f, M_LN[0]));
    let ln_1p = fma(square, p, k * M_LN2_LOW) + f;
    return fma(k, M_LN2_HIGH, ln_1p);
}

// eˣ = 2ⁿ·eʳ, with 2ⁿ in two factors: it may be too large for one, or the result subnormal.
fn m_exp(x: f32) -> f32 {
    let below = select(x, 89.0, x > 89.0);
    let reduced = m_reduce(select(below, -104.0, below < -104.0));
    let half = reduced.n >> 1u;
    let scaled = m_shift(1.0 + m_exp_m1_reduced(reduced.r), half);
    return m_keep_nan(x, scaled * m_pow2(reduced.n - half));
}

// eˣ - 1 = 2ⁿ·(eʳ - 1) + (2ⁿ - 1), halved so that 2ⁿ does not overflow before the result does.
fn m_exp_m1(x: f32) -> f32 {
    let below = select(x, 89.0, x > 89.0);
    let reduced = m_reduce(select(below, -18.0, below < -18.0));
    let power = m_pow2(reduced.n - 1);
    let half = fma(power, m_exp_m1_reduced(reduced.r), select(power - 0.5, 0.0, reduced.n == 0));
    // Keeps the sign of zero, and subnormal numbers from being halved.
    return m_keep_nan(x, select(2.0 * half, x, abs(x) < M_DOWN));
}

// ln x = k·ln 2 + ln(1+f) where x = 2ᵏ·(1+f). A subnormal x is 2⁻¹⁴⁹ times its bits.
fn m_ln(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let subnormal = bits < 0x00800000u;
    let normal = select(x, f32(bits), subnormal);
    let k = m_exponent(normal);
    let f = m_shift(normal, -k) - 1.0;
    let y = m_ln_scaled(f32(select(k, k - 149, subnormal)), f);
    // ln(∞) = ∞, and NaN stays.
    var result = select(bitcast<u32>(y), bits, bits >= M_INFINITY);
    result = select(result, M_NAN, bits > M_SIGN);
    result = select(result, M_NEG_INFINITY, (bits & ~M_SIGN) == 0u);
    return bitcast<f32>(result);
}

// ln(1+x) = k·ln 2 + ln(1+f) where 1+x = 2ᵏ·(1+f), that is f = 2⁻ᵏ·x + (2⁻ᵏ - 1), which is rounded
// only once; k is that of the rounded 1+x.
fn m_ln_1p(x: f32) -> f32 {
    const MINUS_ONE = 0xbf800000u;
    let bits = bitcast<u32>(x);
    let k = m_exponent(1.0 + x);
    // Where 2⁻ᵏ is subnormal, it counts for nothing.
    let scale = m_pow2(-min(k, 126));
    let f = m_shift(x, -k) + select(scale - 1.0, 0.0, k == 0);
    let y = m_copysign(m_ln_scaled(f32(k), f), x);
    // ln(∞) = ∞, and NaN stays.
    var result = select(bitcast<u32>(y), bits, bits >= M_INFINITY && bits < M_SIGN);
    result = select(result, M_NAN, bits > MINUS_ONE);
    result = select(result, M_NEG_INFINITY, bits == MINUS_ONE);
    return bitcast<f32>(result);
}

// tanh x = (1 - e) / (1 + e) where e = e⁻²ˣ = 2ⁿ·eʳ, for x ≥ 0; it is odd. Each of the two is made
// from 2ⁿ·(eʳ - 1), so that it is rounded once.
fn m_tanh(x: f32) -> f32 {
    let magnitude = abs(x);
    let reduced = m_reduce(-2.0 * select(magnitude, 10.0, magnitude > 10.0));
    let power = m_pow2(reduced.n);
    let exp_m1 = m_exp_m1_reduced(reduced.r);
    let negated = fma(power, exp_m1, select(power - 1.0, 0.0, reduced.n == 0));
    let above = fma(power, exp_m1, power + 1.0);
    return m_keep_nan(x, m_copysign(m_divide(negated, above), x));
}

// 1/(1 + e⁻ˣ) = 1 - y for x ≥ 0 and e - e·y for x < 0, where e = e^-|x| and y = e / (1 + e): where
// e is small, and 1 + e a coarse rounding, y counts for little.
fn m_sigmoid(x: f32) -> f32 {
    let e_up = m_exp_nonpositive_up(-abs(x));
    let y = m_divide(e_up, M_UP + e_up);
    let scale = select(1.0, e_up * M_DOWN, x < 0.0);
    return m_keep_nan(x, fma(-scale, y, scale));
}

// ln(1 + eˣ) = max(x, 0) + ln(1 + e) where e = e^-|x|; above √2, 1 + e is halved for the logarithm.
fn m_softplus(x: f32) -> f32 {
    const SQRT_2 = 1.4142135623730951;
    let e = m_exp_nonpositive_up(-abs(x)) * M_DOWN;
    let halve = e > SQRT_2 - 1.0;
    let k = select(0.0, 1.0, halve);
    let f = select(e, 0.5 * e - 0.5, halve);
    let positive = select(0.0, x, x > 0.0);
    return m_keep_nan(x, positive + m_ln_scaled(k, f));
}

// The error function: x + x·p(x²) or 1 - exp(p(x)), with the sign of x.
fn m_erf(x: f32) -> f32 {
    let z = select(abs(x), 4.1, abs(x) > 4.1);
    let square = z * z;
    let fourth = square * square;
    var small = fma(M_ERF_SMALL[5], square, M_ERF_SMALL[4]);
    small = fma(small, fourth, fma(M_ERF_SMALL[3], square, M_ERF_SMALL[2]));
    small = fma(small, fourth, fma(M_ERF_SMALL[1], square, M_ERF_SMALL[0]));
    var large = fma(M_ERF_LARGE[5], z, M_ERF_LARGE[4]);
    large = fma(large, square, fma(M_ERF_LARGE[3], z, M_ERF_LARGE[2]));
    large = fma(large, square, fma(M_ERF_LARGE[1], z, M_ERF_LARGE[0]));
    let y = select(1.0 - m_exp_scaled(large, 0), fma(z, small, z), z < 0.9);
    // Of the smallest numbers, z·small would be subnormal.
    return m_keep_nan(x, m_copysign(select(y, z * 1.1283792, z < M_DOWN), x));
}

// The sine of x + quarters·π/2. With n the integer nearest to x·2/π, it is ±sin or ±cos of
// r = x - n·π/2, by the last two bits of n + quarters. π/2 is in four parts of 8 bits and a rest,
// whose products with n are exact while |x| ≤ 2¹⁶, as all f16 are; NaN beyond. The select()s change
// nothing: they keep a compiler from joining the parts.
fn m_sin_quarters(x: f32, quarters: i32) -> f32 {
    let n = round(x * 0.6366197723675814);
    let i = i32(select(n, 0.0, abs(x) > 65536.0));
    var r = select(fma(n, -1.5703125, x), x, i == 0);
    r = select(fma(n, -0.00048828125, r), r, i == 0);
    r = select(fma(n, 4.410743713378906e-6, r), r, i == 0);
    r = fma(n, 4.371139e-8, r);
    let square = r * r;
    let sin_p = fma(square, fma(square, M_SIN[2], M_SIN[1]), M_SIN[0]);
    let cos_p = fma(square, fma(square, M_COS[2], M_COS[1]), M_COS[0]);
    let sine = fma(r * square, sin_p, r);
    let cosine = fma(square * square, cos_p, fma(square, -0.5, 1.0));
    let quadrant = bitcast<u32>(i + quarters);
    let value = bitcast<u32>(select(sine, cosine, (quadrant & 1u) == 1u));
    let bits = value ^ ((quadrant & 2u) << 30u);
    return bitcast<f32>(select(M_NAN, bits, (bitcast<u32>(x) & ~M_SIGN) <= 0x47800000u));
}

fn m_sin(x: f32) -> f32 {
    return select(m_sin_quarters(x, 0), x, x == 0.0);
}

fn m_cos(x: f32) -> f32 {
    return m_sin_quarters(x, 1);
}

// The square root, -0 of -0, NaN of what is less. The builtin is within 5 ulp only, which a step
// of Newton's method makes about 1.
fn m_sqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let root = sqrt(x);
    let refined = fma(fma(-root, root, x), 0.5 / root, root);
    let normal = bits >= 0x00800000u && bits < M_INFINITY;
    let result = select(bitcast<u32>(root), bitcast<u32>(refined), normal);
    return m_keep_nan(x, bitcast<f32>(select(result, M_NAN, bits > M_SIGN)));
}

// Used by the functions of function.rs. Inserted between gpu/math.wgsl and a function of the table.
//
// Limits are set by select() and not by min() and max(), which may drop a NaN; and since a compiler
// may assume that there is none, m_keep_nan() brings it back.

fn not_above(x: f32, limit: f32) -> f32 {
    return select(x, limit, x > limit);
}

fn not_below(x: f32, limit: f32) -> f32 {
    return select(x, -limit, x < -limit);
}

// Beyond this, both forms of gelu are exactly 0 or x, and their derivatives 0 or 1; within it, no
// power of x overflows.
const GELU_FLAT = 64.0;

// With s(v) = sigmoid(v) and v = √(8/π)·(x + 0.044715·x³), since (1 + tanh(v/2))/2 = s(v):
// y = x·s and y' = s + x·s·(1 − s)·v'.
const SQRT_8_OVER_PI = 1.5957691216057307;
const CUBIC = 0.044715;

fn gelu(x: f32) -> f32 {
    let z = not_above(not_below(x, GELU_FLAT), GELU_FLAT);
    let v = z * fma(z * z, SQRT_8_OVER_PI * CUBIC, SQRT_8_OVER_PI);
    return m_keep_nan(x, not_below(x, GELU_FLAT) * m_sigmoid(v));
}

fn gelu_derivative(x: f32) -> f32 {
    let z = not_above(not_below(x, GELU_FLAT), GELU_FLAT);
    let square = z * z;
    let v = z * fma(square, SQRT_8_OVER_PI * CUBIC, SQRT_8_OVER_PI);
    let dv = fma(square, 3.0 * SQRT_8_OVER_PI * CUBIC, SQRT_8_OVER_PI);
    let s = m_sigmoid(v);
    return m_keep_nan(x, fma(z * dv * s, 1.0 - s, s));
}

// With Φ(x) = (1 + erf(x/√2))/2: y = x·Φ and y' = Φ + x·exp(−x²/2)/√(2π).
fn normal_cdf(x: f32) -> f32 {
    return fma(m_erf(x * 0.7071067811865476), 0.5, 0.5);
}

fn gelu_erf(x: f32) -> f32 {
    let z = not_above(not_below(x, GELU_FLAT), GELU_FLAT);
    return m_keep_nan(x, not_below(x, GELU_FLAT) * normal_cdf(z));
}

fn gelu_erf_derivative(x: f32) -> f32 {
    let z = not_above(not_below(x, GELU_FLAT), GELU_FLAT);
    let density = m_exp(z * z * -0.5) * 0.3989422804014327;
    return m_keep_nan(x, fma(z, density, normal_cdf(z)));
}

// Beyond this, silu is exactly 0 or x.
const SILU_FLAT = 800.0;

// With s = sigmoid(x): y = x·s and y' = s·(1 + x·(1 − s)).
fn silu(x: f32) -> f32 {
    return m_keep_nan(x, not_below(x, SILU_FLAT) * m_sigmoid(x));
}

fn silu_derivative(x: f32) -> f32 {
    let z = not_above(not_below(x, SILU_FLAT), SILU_FLAT);
    let s = m_sigmoid(z);
    return m_keep_nan(x, s * fma(z, 1.0 - s, 1.0));
}

// x to the power e: products of the squares x, x², x⁴, … whose bits the exponent has; times a
// square root; or else exp(e·ln|x|), with the sign of an odd power.
fn power(x: f32, e: f32) -> f32 {
    let whole = floor(abs(e));
    let rest = abs(e) - whole;
    if whole < 64.0 && (rest == 0.0 || rest == 0.5) {
        var result = 1.0;
        if rest == 0.5 {
            result = m_sqrt(x);
        }
        var square = x;
        for (var bits = u32(whole); bits > 0u; bits >>= 1u) {
            if (bits & 1u) == 1u {
                result *= square;
            }
            square *= square;
        }
        return m_keep_nan(x, select(result, 1.0 / result, e < 0.0));
    }
    let magnitude = m_exp(e * m_ln(abs(x)));
    let odd = whole * 0.5 != floor(whole * 0.5);
    let signed = bitcast<u32>(select(magnitude, -magnitude, odd && x < 0.0));
    return m_keep_nan(x, bitcast<f32>(select(signed, M_NAN, rest != 0.0 && x < 0.0)));
}

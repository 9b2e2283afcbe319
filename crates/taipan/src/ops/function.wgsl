// The functions of function.rs: value() and grad() of the one that the header's FUNCTION names.
// Goes after gpu/math.wgsl and before a kernel. SCALE is done by the kernel, which has the factor.
//
// Limits are set by select() and not by min() and max(), which may drop a NaN; and since a compiler
// may assume that there is none, m_keep_nan() brings it back.

const IDENTITY = 0u;
const RELU = 1u;
const GELU = 2u;
const GELU_ERF = 3u;
const SILU = 4u;
const SIGMOID = 5u;
const TANH = 6u;
const NEG = 7u;
const EXP = 8u;
const EXPM1 = 9u;
const LOG = 10u;
const LOG1P = 11u;
const SQRT = 12u;
const SOFTPLUS = 13u;
const SCALE = 14u;

// f(x).
fn value(x: f32) -> f32 {
    switch FUNCTION {
        case IDENTITY, default: { return x; }
        case RELU: { return m_keep_nan(x, select(x, 0.0, x < 0.0)); }
        case GELU: { return gelu(x); }
        case GELU_ERF: { return gelu_erf(x); }
        case SILU: { return silu(x); }
        case SIGMOID: { return m_sigmoid(x); }
        case TANH: { return m_tanh(x); }
        case NEG: { return -x; }
        case EXP: { return m_exp(x); }
        case EXPM1: { return m_exp_m1(x); }
        case LOG: { return m_ln(x); }
        case LOG1P: { return m_ln_1p(x); }
        case SQRT: { return m_sqrt(x); }
        case SOFTPLUS: { return m_softplus(x); }
    }
}

// dy·f', from the input or the output, as Function::kept says. An infinite dy stops where the slope
// of relu is 0.
fn grad(kept: f32, dy: f32) -> f32 {
    switch FUNCTION {
        case IDENTITY, default: { return dy; }
        case RELU: { return m_keep_nan(kept, select(0.0, dy, kept > 0.0)); }
        case GELU: { return dy * gelu_slope(kept); }
        case GELU_ERF: { return dy * gelu_erf_slope(kept); }
        case SILU: { return dy * silu_slope(kept); }
        case SIGMOID: { return dy * (kept * (1.0 - kept)); }
        case TANH: { return dy * ((1.0 - kept) * (1.0 + kept)); }
        case NEG: { return -dy; }
        case EXP: { return dy * kept; }
        case EXPM1: { return dy * m_exp(kept); }
        case LOG: { return dy * (1.0 / kept); }
        case LOG1P: { return dy * (1.0 / (1.0 + kept)); }
        case SQRT: { return dy * (0.5 / kept); }
        case SOFTPLUS: { return dy * m_sigmoid(kept); }
    }
}

// dy·f'(x), whatever the slope is computed from.
fn grad_at(x: f32, dy: f32) -> f32 {
    switch FUNCTION {
        case RELU, SIGMOID, TANH, EXP, SQRT: { return grad(value(x), dy); }
        default: { return grad(x, dy); }
    }
}

fn not_above(x: f32, limit: f32) -> f32 {
    return select(x, limit, x > limit);
}

fn not_below(x: f32, limit: f32) -> f32 {
    return select(x, -limit, x < -limit);
}

// Beyond this, both forms of gelu are 0 or x to the last digit, and so are their slopes 0 or 1;
// within it, no power of x overflows.
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

fn gelu_slope(x: f32) -> f32 {
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

fn gelu_erf_slope(x: f32) -> f32 {
    let z = not_above(not_below(x, GELU_FLAT), GELU_FLAT);
    let density = m_exp(z * z * -0.5) * 0.3989422804014327;
    return m_keep_nan(x, fma(z, density, normal_cdf(z)));
}

// Beyond this, silu is 0 or x to the last digit.
const SILU_FLAT = 800.0;

// With s = sigmoid(x): y = x·s and y' = s·(1 + x·(1 − s)).
fn silu(x: f32) -> f32 {
    return m_keep_nan(x, not_below(x, SILU_FLAT) * m_sigmoid(x));
}

fn silu_slope(x: f32) -> f32 {
    let z = not_above(not_below(x, SILU_FLAT), SILU_FLAT);
    let s = m_sigmoid(z);
    return m_keep_nan(x, s * fma(z, 1.0 - s, 1.0));
}

// Common to the sequential scans: an invocation has a channel of a segment, which is a range of
// chunks. Chunk by chunk it loads the values of STEPS steps into registers, and then scans them for
// one state after the other: a state takes one register, whatever their number.

// What a workgroup computes: WIDTH neighbouring channels of a segment.
struct Work {
    // The index of the segment, counted over all rows.
    unit: u32,
    entry: u32,
    segment: u32,
    block: u32,
    // Its chunks, counted within the row.
    first: u32,
    end: u32,
}

fn work_of(group: u32) -> Work {
    let blocks = (p.d + WIDTH - 1u) / WIDTH;
    let unit = group / blocks + p.first_unit;
    let segment = unit % p.segments + p.first_segment;
    let first = segment * p.per_segment;
    let end = min(first + p.per_segment, p.chunks);
    return Work(unit, unit / p.segments, segment, group % blocks, first, end);
}

// The number of steps of a chunk; the last chunk may have fewer.
fn steps_of(chunk: u32) -> u32 {
    return min(p.l - chunk * STEPS, STEPS);
}

fn starts_at(seq_starts: u32, t: u32) -> bool {
    return SEQ_STARTS == 1u && (seq_starts & (1u << t)) != 0u;
}

const LN_2 = 0.6931471805599453;

// p of 2ʳ − 1 = r·p(r) for |r| ≤ ½: that of math.wgsl in r·ln 2.
const EXP2 = array<f32, 6>(
    0.693147182, 0.240226507, 0.0555036999, 0.00961817335, 0.00133869343, 0.00015414611,
);

// 2ˣ as the pair of 2ⁿ and m in 2ⁿ·(1 + m); 2ⁿ is 0 where 2ˣ would be subnormal.
fn power_parts(x: f32) -> vec2<f32> {
    let within = clamp(x, -127.0, 127.9);
    let n = round(within);
    let r = m_keep_nan(x, within - n); // clamp() may drop it
    let square = r * r;
    var q = fma(EXP2[5], r, EXP2[4]);
    q = fma(q, square, fma(EXP2[3], r, EXP2[2]));
    q = fma(q, square, fma(EXP2[1], r, EXP2[0]));
    return vec2(bitcast<f32>(u32(i32(n) + 127) << 23u), r * q);
}

// ā = exp(Δ·A) for a step of size Δ and a rate A, of which `rate` is A·log₂e.
fn decay(size: f32, rate: f32) -> f32 {
    if NATIVE_EXP2 == 1u {
        return exp2(size * rate);
    }
    let parts = power_parts(size * rate);
    return fma(parts.x, parts.y, parts.x);
}

// The discretised system: ā, and b_factor with b̄ = b_factor·b.
struct Discretized {
    a_bar: f32,
    b_factor: f32,
}

// With zero-order hold, b_factor is (ā − 1)/A. Near 0 that cancels, unless ā is a polynomial.
fn discretize_directly(size: f32, rate: f32, inverse: f32) -> Discretized {
    if ZERO_ORDER_HOLD == 0u {
        return Discretized(decay(size, rate), size);
    }
    if NATIVE_EXP2 == 1u {
        let a_bar = exp2(size * rate);
        return Discretized(a_bar, fma(a_bar, inverse, -inverse));
    }
    let parts = power_parts(size * rate);
    let exp_m1 = fma(parts.x, parts.y, parts.x - 1.0);
    return Discretized(fma(parts.x, parts.y, parts.x), exp_m1 * inverse);
}

// p of φ₁(x) = p(x·log₂e), for |x| ≤ 0.15: within 5.3e-7.
const PHI1_BOUND = 0.15 / LN_2;
const PHI1 = array<f32, 4>(0.99999946, 0.34657389, 0.08016558, 0.013876026);

// The same everywhere: b_factor is Δ·φ₁(Δ·A).
fn discretize(size: f32, rate: f32, inverse: f32) -> Discretized {
    var step = discretize_directly(size, rate, inverse);
    if ZERO_ORDER_HOLD == 1u && NATIVE_EXP2 == 1u {
        let x = size * rate;
        let phi1 = fma(fma(fma(PHI1[3], x, PHI1[2]), x, PHI1[1]), x, PHI1[0]);
        step.b_factor = select(step.b_factor, size * phi1, abs(x) < PHI1_BOUND);
    }
    return step;
}

// 1/A, for zero-order hold.
fn inverse_of(rate: f32) -> f32 {
    if ZERO_ORDER_HOLD == 1u {
        return 1.0 / (rate * LN_2);
    }
    return 0.0;
}

// What a step adds to the state, before it is multiplied by b; `input` is u, with Euler's method
// Δ·u.
fn scaled_input(input: f32, b_factor: f32) -> f32 {
    if ZERO_ORDER_HOLD == 1u {
        return b_factor * input;
    }
    return input;
}

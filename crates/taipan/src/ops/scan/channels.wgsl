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

// A chunk of the row of a segment.
struct Chunk {
    // Its index, counted over all rows.
    number: u32,
    // The first of its rows of [b·l].
    row: u32,
    // Its number of steps; the last chunk may have fewer.
    steps: u32,
    // A bit for each step at which a sequence starts.
    seq_starts: u32,
}

fn chunk_of(at: Work, chunk: u32) -> Chunk {
    let number = at.entry * p.chunks + chunk;
    let first = chunk * STEPS;
    let seq_starts = u32(prepared[seq_starts_at(number)]);
    return Chunk(number, at.entry * p.l + first, min(p.l - first, STEPS), seq_starts);
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
fn discretize(size: f32, rate: f32, inverse: f32) -> Discretized {
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

// With zero-order hold and the adapter's own exp2, and x = Δ·A, b_factor is ½·(1 + ā)·Δ·(1 + c·x²)
// near 0, because φ₁(x) = ½·(1 + ā)·tanh(x/2)/(x/2). For |x| ≤ 0.14 it is within 5.5e-7. Elsewhere it
// is ½·(ā − 1)·2/A. As A is negative, both are one fma.
const NATIVE_HOLD = ZERO_ORDER_HOLD == 1u && NATIVE_EXP2 == 1u;
const TANH_BOUND = 0.14 / LN_2;
const TANH_SQUARE = -0.0831982 * LN_2 * LN_2;

// What follows from the rate of a state.
struct State {
    rate: f32,
    inverse: f32,  // 1/A; with NATIVE_HOLD, 2/A
    square: f32,   // c·A², but finite
}

fn state_of(rate: f32) -> State {
    if NATIVE_HOLD {
        return State(rate, 2.0 * inverse_of(rate), max(TANH_SQUARE * rate * rate, -1e20));
    }
    return State(rate, inverse_of(rate), 0.0);
}

// What follows from the size of a step, and its u.
struct Step {
    size: f32,
    cube: f32,   // with NATIVE_HOLD |Δ|³, but finite
    input: f32,  // u; with Euler's method Δ·u, with NATIVE_HOLD ½·u with the sign of Δ·u
}

fn step_of(size: f32, u: f32) -> Step {
    if NATIVE_HOLD {
        let cube = min(abs(size * size * size), 1e30);
        return Step(size, cube, select(0.5 * u, -0.5 * u, size < 0.0));
    }
    return Step(size, 0.0, select(size * u, u, ZERO_ORDER_HOLD == 1u));
}

// ā, and what the step adds to the state before it is multiplied by b.
fn advance(step: Step, state: State) -> vec2<f32> {
    if NATIVE_HOLD {
        let x = step.size * state.rate;
        let a_bar = exp2(x);
        let near_0 = fma(step.cube, state.square, abs(step.size));
        let factor = select(state.inverse, near_0, abs(x) < TANH_BOUND);
        return vec2(a_bar, abs(fma(a_bar, factor, abs(factor))) * step.input);
    }
    let discretized = discretize(step.size, state.rate, state.inverse);
    return vec2(discretized.a_bar, scaled_input(step.input, discretized.b_factor));
}

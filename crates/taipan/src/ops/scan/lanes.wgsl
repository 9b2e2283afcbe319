// Common to the sequential scans: an invocation has VECTOR channels, WIDTH apart, of a segment,
// which is a range of chunks. Chunk by chunk it loads the values of STEPS steps into registers, and
// then scans them for one state after the other.
alias Lanes = vec2<f32>;
alias Integers = vec2<i32>;

// What a workgroup computes: WIDTH·VECTOR neighbouring channels of a segment.
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

fn blocks() -> u32 {
    return (p.d + WIDTH * VECTOR - 1u) / (WIDTH * VECTOR);
}

fn work_of(group: u32) -> Work {
    let unit = group / blocks() + p.first_unit;
    let segment = unit % p.segments + p.first_segment;
    let first = segment * p.per_segment;
    let end = min(first + p.per_segment, p.chunks);
    return Work(unit, unit / p.segments, segment, group % blocks(), first, end);
}

// The number of steps of a chunk; the last chunk may have fewer.
fn steps_of(chunk: u32) -> u32 {
    return min(p.l - chunk * STEPS, STEPS);
}

// Invocations beyond the last channel read its data and use 0 instead.
fn within(channel: u32) -> vec2<u32> {
    return min(vec2(channel, channel + WIDTH), vec2(p.d - 1u));
}

fn inside(channel: u32) -> vec2<bool> {
    return vec2(channel, channel + WIDTH) < vec2(p.d);
}

fn rates(state: u32, channel: u32) -> Lanes {
    let c = within(channel);
    let v = Lanes(prepared[rate_at(state, c.x)], prepared[rate_at(state, c.y)]);
    return select(Lanes(-1.0), v, inside(channel));
}

fn is_nan(x: Lanes) -> vec2<bool> {
    return (bitcast<vec2<u32>>(x) & vec2(~M_SIGN)) > vec2(M_INFINITY);
}

// The discretised system for a step of size Δ and a rate A: ā = exp(Δ·A), and b_factor with
// b̄ = b_factor·b.
struct Discretized {
    a_bar: Lanes,
    b_factor: Lanes,
}

// As m_exp() and m_exp_m1(), but cheaper: subnormal results are 0.
fn discretize(size: Lanes, rate: Lanes) -> Discretized {
    const LEAST = -87.0;
    let x = size * rate;
    let within = clamp(x, Lanes(LEAST), Lanes(88.7));
    let n = round(within * M_LOG2_E);
    let i = Integers(n);
    let high = select(fma(n, Lanes(-M_LN2_HIGH), within), within, i == Integers());
    let r = fma(n, Lanes(-M_LN2_LOW), high);
    let square = r * r;
    var q = Lanes(M_EXP[4]);
    q = fma(q, square, fma(Lanes(M_EXP[3]), r, Lanes(M_EXP[2])));
    q = fma(q, square, fma(Lanes(M_EXP[1]), r, Lanes(M_EXP[0])));
    let m = fma(square, q, r);
    let exponent = i << vec2(23u);
    let scaled = bitcast<Lanes>(bitcast<Integers>(1.0 + m) + exponent);
    let a_bar = select(select(scaled, Lanes(), x < Lanes(LEAST)), x, is_nan(x));
    if ZERO_ORDER_HOLD == 0u {
        return Discretized(a_bar, size);
    }
    // 2ⁿ·m + (2ⁿ − 1); n = 128 would overflow.
    let power = bitcast<Lanes>(bitcast<Integers>(Lanes(1.0)) + min(exponent, Integers(127 << 23u)));
    let near = fma(power, m, select(power - 1.0, Lanes(), i == Integers()));
    let exp_m1 = select(near, a_bar - 1.0, i > Integers(1));
    let tiny = abs(x) < Lanes(M_DOWN);
    return Discretized(a_bar, select(exp_m1 / rate, size, tiny | is_nan(size)));
}

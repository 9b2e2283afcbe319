// An invocation of the kernels that walk through time has VECTOR channels, WIDTH apart, of a piece: some
// chunks of a sequence, one after the other. It goes through the states one by one, and with each through
// the STEPS of a chunk, whose numbers it holds meanwhile.
alias Lanes = vec2<f32>;
alias Integers = vec2<i32>;

// What a workgroup computes: WIDTH·VECTOR neighbouring channels of a piece.
struct Place {
    // Pieces are counted through all sequences.
    unit: u32,
    entry: u32,
    piece: u32,
    block: u32,
    // Its chunks, within the sequence.
    first: u32,
    end: u32,
}

fn blocks() -> u32 {
    return (p.d + WIDTH * VECTOR - 1u) / (WIDTH * VECTOR);
}

fn place(group: u32) -> Place {
    let unit = group / blocks() + p.first_unit;
    let piece = unit % p.pieces + p.first_piece;
    let first = piece * p.per_piece;
    let end = min(first + p.per_piece, p.chunks);
    return Place(unit, unit / p.pieces, piece, group % blocks(), first, end);
}

// The steps of a chunk that are before the end.
fn steps_of(chunk: u32) -> u32 {
    return min(p.l - chunk * STEPS, STEPS);
}

// Channels beyond the last one compute what the last one does, from 0.
fn within(channel: u32) -> vec2<u32> {
    return min(vec2(channel, channel + WIDTH), vec2(p.d - 1u));
}

fn inside(channel: u32) -> vec2<bool> {
    return vec2(channel, channel + WIDTH) < vec2(p.d);
}

fn rates(state: u32, channel: u32) -> Lanes {
    let c = within(channel);
    let v = Lanes(packed[rate_at(state, c.x)], packed[rate_at(state, c.y)]);
    return select(Lanes(-1.0), v, inside(channel));
}

fn is_nan(x: Lanes) -> vec2<bool> {
    return (bitcast<vec2<u32>>(x) & vec2(~M_SIGN)) > vec2(M_INFINITY);
}

// What happens during a step of size Δ to a state of rate A: ā = exp(Δ·A), and held of b̄ = held·b.
struct Held {
    decay: Lanes,
    held: Lanes,
}

// As m_exp() and m_exp_m1(), but that what is subnormal is 0, and for less.
fn hold(size: Lanes, rate: Lanes) -> Held {
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
    let decay = select(select(scaled, Lanes(), x < Lanes(LEAST)), x, is_nan(x));
    if ZERO_ORDER == 0u {
        return Held(decay, size);
    }
    // 2ⁿ·m + (2ⁿ − 1), where n is not 128.
    let power = bitcast<Lanes>(bitcast<Integers>(Lanes(1.0)) + min(exponent, Integers(127 << 23u)));
    let near = fma(power, m, select(power - 1.0, Lanes(), i == Integers()));
    let exp_m1 = select(near, decay - 1.0, i > Integers(1));
    let tiny = abs(x) < Lanes(M_DOWN);
    return Held(decay, select(exp_m1 / rate, size, tiny | is_nan(size)));
}

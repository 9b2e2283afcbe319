// x is [rows, n]; a workgroup samples one element of a row, y[row]: that with the greatest score
// (x − max x)/temperature + noise. The function `token` is in another file.
@group(0) @binding(0) var<storage, read> x: array<Elem>;

// −ln(−ln(1 − w)), where w in (0, 1) has the leading 24 significant bits of the random bits, which
// every device converts exactly.
fn gumbel(bits: u32) -> f32 {
    let positive = bits | 1u;
    let digits = positive & (0xffffff00u >> countLeadingZeros(positive));
    let w = f32(digits) * (1.0 / 4294967296.0);
    return -m_ln(-m_ln_1p(-w));
}

fn line(row: u32, local: u32) {
    const NEG_INFINITE = 0x007fffffu; // orders
    const INFINITE = 0xff800000u;
    let start = row * p.n;
    var top = vec2(0u); // order, index
    for (var j = local; j < p.n; j += WIDTH) {
        top = join(top, vec2(order(f32(x[start + j])), j));
    }
    top = workgroup_join(top, local);
    let most = f32(x[start + top.y]);
    var best = vec2(0u);
    for (var j = local; j < p.n; j += WIDTH) {
        let here = f32(x[start + j]);
        let noise = gumbel(threefry(vec2(p.key_low, p.key_high), vec2(token(start + j, j), row)).x);
        let score = (here - most) * p.sharpness + noise;
        if order(here) > NEG_INFINITE {
            best = join(best, vec2(order(score), j));
        }
    }
    best = workgroup_join(best, local);
    if local == 0u {
        let finite = top.x > NEG_INFINITE && top.x < INFINITE;
        let j = select(top.y, best.y, finite);
        y[row] = token(start + j, j);
    }
}

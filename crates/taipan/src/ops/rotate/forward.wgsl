// y: pairs of x, [b, l, r, h, n], turned by turns, [b, l, h, s].
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> turns: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    let at = place(i);
    if at.pair >= p.pairs {
        for (var rank = 0u; rank < p.ranks; rank++) {
            let channel = at.channels.x + rank * rank_stride();
            y[channel] = x[channel];
        }
        return;
    }
    let by = angle(turns[at.turn]);
    let c = m_cos(by);
    let s = m_sin(by);
    for (var rank = 0u; rank < p.ranks; rank++) {
        let channels = at.channels + rank * rank_stride();
        let a = f32(x[channels.x]);
        let b = f32(x[channels.y]);
        y[channels.x] = Elem(a * c - b * s);
        y[channels.y] = Elem(a * s + b * c);
    }
}

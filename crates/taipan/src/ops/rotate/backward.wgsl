// dx: pairs of dy, [b, l, r, h, n], turned back by turns, [b, l, h, s], whose gradient is dturns.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> turns: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<Elem>;
@group(0) @binding(3) var<storage, read_write> dx: array<Elem>;
@group(0) @binding(4) var<storage, read_write> dturns: array<f32>;

fn element(i: u32) {
    let at = place(i);
    if at.pair >= p.pairs {
        for (var rank = 0u; rank < p.ranks; rank++) {
            let channel = at.channels.x + rank * rank_stride();
            dx[channel] = dy[channel];
        }
        return;
    }
    let by = angle(turns[at.turn]);
    let c = m_cos(by);
    let s = m_sin(by);
    var sum = 0.0;
    for (var rank = 0u; rank < p.ranks; rank++) {
        let channels = at.channels + rank * rank_stride();
        let da = f32(dy[channels.x]);
        let db = f32(dy[channels.y]);
        sum += f32(y[channels.x]) * db - f32(y[channels.y]) * da;
        dx[channels.x] = Elem(da * c + db * s);
        dx[channels.y] = Elem(db * c - da * s);
    }
    dturns[at.turn] = 6.283185307179586 * sum;
}

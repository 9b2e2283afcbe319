// Carries states across pieces: behind each piece is what it made of no states, and the states before it
// times exp(A·ΣΔ) are added. The same for gradients, which go backwards. One invocation for each state of
// a channel.
@group(0) @binding(0) var<storage, read> packed: array<f32>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;            // [b, pieces, d]
@group(0) @binding(2) var<storage, read_write> states: array<f32>;    // [b, chunks, p.rows, d]
@group(1) @binding(0) var<uniform> p: Params;

fn element(i: u32) {
    let c = i % p.d;
    let j = i / p.d % p.n;
    let entry = i / p.d / p.n;
    let rate = packed[rate_at(j, c)];
    var h = 0.0;
    // The first of these is whole, the others are to be added to.
    for (var s = 1u; s < p.all_pieces; s++) {
        // Forwards, behind piece s - 1; backwards, before the piece that is as far from the end.
        let chunk = select(s * p.per_piece, (p.all_pieces - s) * p.per_piece - 1u, p.backwards == 1u);
        let piece = select(s - 1u, p.all_pieces - s, p.backwards == 1u);
        let at = ((entry * p.chunks + chunk) * p.rows + j) * p.d + c;
        if s > 1u {
            let sum = sums[(entry * p.all_pieces + piece) * p.d + c];
            let x = rate * sum;
            h = select(m_exp(select(x, 88.0, x > 88.0)) * h, 0.0, sum == ENDLESS);
        }
        h += states[at];
        states[at] = h;
    }
}

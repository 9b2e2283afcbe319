// Carries states across segments: to the state after each segment, computed from a zero state, adds
// exp(A·ΣΔ) times the state before it. The same for gradients, backwards. One invocation for each
// state of a channel.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;            // [b, segments, d]
@group(0) @binding(2) var<storage, read_write> states: array<f32>;    // [b, chunks, p.rows, d]

fn element(i: u32) {
    let c = i % p.d;
    let j = i / p.d % p.n;
    let entry = i / p.d / p.n;
    let rate = prepared[rate_at(j, c)];
    var h = 0.0;
    // The first is complete.
    for (var s = 1u; s < p.all_segments; s++) {
        // Forwards, after segment s - 1; backwards, before segment all_segments - s.
        let before = (p.all_segments - s) * p.per_segment - 1u;
        let chunk = select(s * p.per_segment, before, p.backwards == 1u);
        let segment = select(s - 1u, p.all_segments - s, p.backwards == 1u);
        let at = ((entry * p.chunks + chunk) * p.rows + j) * p.d + c;
        if s > 1u {
            let sum = sums[(entry * p.all_segments + segment) * p.d + c];
            let x = rate * sum;
            h = select(m_exp(select(x, 88.0, x > 88.0)) * h, 0.0, sum == RESET);
        }
        h += states[at];
        states[at] = h;
    }
}

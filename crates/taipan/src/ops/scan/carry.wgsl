// Carries states across segments: to the state after each segment, computed from a zero state, adds
// exp(A·ΣΔ) times the state before it. The same for gradients, backwards. One invocation for each
// state of a channel.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;            // [b, segments, d]
// [b, chunks, n, d], or gradients [b, segments, 2·n + 2, d]; p.rows is the number of rows of each.
@group(0) @binding(2) var<storage, read_write> states: array<f32>;

const LN_2 = 0.6931471805599453;

fn element(i: u32) {
    let c = i % p.d;
    let j = i / p.d % p.n;
    let entry = i / p.d / p.n;
    let rate = prepared[rate_at(j, c)];
    var h = 0.0;
    // The first is complete.
    for (var s = 1u; s < p.all_segments; s++) {
        // Forwards, after segment s - 1; backwards, before segment all_segments - s.
        let segment = select(s - 1u, p.all_segments - s, p.backwards == 1u);
        let after = entry * p.chunks + s * p.per_segment;
        let before = entry * p.all_segments + segment - 1u;
        let at = (select(after, before, p.backwards == 1u) * p.rows + j) * p.d + c;
        if s > 1u {
            let sum = sums[(entry * p.all_segments + segment) * p.d + c];
            let x = rate * LN_2 * sum;
            h = select(m_exp(select(x, 88.0, x > 88.0)) * h, 0.0, sum == RESET);
        }
        h += states[at];
        states[at] = h;
    }
}

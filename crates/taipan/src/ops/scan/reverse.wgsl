// The gradient that each segment except the first passes to the one before it: a sequential scan
// backwards, from a zero gradient, or from that of the final state for the last segment. Also the
// sum of its step sizes.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> step_sizes: array<f32>;     // [b, l, d]
@group(0) @binding(2) var<storage, read> dy: array<f32>;             // [b, l, d]
@group(0) @binding(3) var<storage, read_write> carries: array<f32>;  // [b, segments, 2·n + 2, d]
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;     // [b, segments, d]

fn group_main(i: u32, local: u32) {
    let at = work_of(i);
    if at.unit >= p.end_unit {
        return;
    }
    let exists = at.block * WIDTH + local < p.d; // as forwards
    let channel = min(at.block * WIDTH + local, p.d - 1u);
    let own = (at.entry * p.all_segments + at.segment) * p.rows;
    let before = own - p.rows;
    var total = 0.0;
    var started = 0u;
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let here = chunk_of(at, chunk);
        var sizes: array<f32, STEPS>;
        var dys: array<f32, STEPS>;
        for (var t = 0u; t < STEPS; t++) {
            let i = (here.row + min(t, here.steps - 1u)) * p.d + channel;
            sizes[t] = select(0.0, step_sizes[i], t < here.steps);
            dys[t] = select(0.0, dy[i], t < here.steps);
            total += sizes[t];
        }
        started |= here.seq_starts;
        for (var j = 0u; j < p.n; j++) {
            let rate = prepared[rate_at(j, channel)];
            var rows = load_bc(bc_rows_at(here.number, j), local);
            var carry = 0.0; // ā_{t+1}·g_{t+1}
            if left < at.end {
                carry = carries[(before + j) * p.d + channel];
            } else if left == p.chunks {
                carry = carries[(own + j) * p.d + channel];
            }
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                let g = fma(bc_at(&rows, STEPS + u32(t)), dys[t], carry);
                carry = select(decay(sizes[t], rate) * g, 0.0, starts_at(here.seq_starts, u32(t)));
            }
            if exists {
                carries[(before + j) * p.d + channel] = carry;
            }
        }
    }
    if exists {
        sums[(at.entry * p.all_segments + at.segment) * p.d + channel] =
            select(total, RESET, started != 0u);
    }
}

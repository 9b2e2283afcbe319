// The gradient that each segment except the first passes to the one before it: a sequential scan
// backwards, from a zero gradient, or from that of the final state for the last segment. Also the
// sum of its step sizes.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> step_sizes: array<f32>;     // [b, l, d]
@group(0) @binding(2) var<storage, read> dy: array<f32>;             // [b, l, d]
@group(0) @binding(3) var<storage, read_write> carries: array<f32>;  // [b, chunks, n + 2, d]
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;     // [b, segments, d]

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = work_of(flat(group, groups));
    let channel = at.block * WIDTH * VECTOR + local;
    if at.unit >= p.end_unit {
        return;
    }
    var total = Lanes();
    var started = 0u;
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let number = at.entry * p.chunks + chunk;
        let seq_starts = u32(prepared[seq_starts_at(number)]);
        let row = at.entry * p.l + chunk * STEPS;
        let steps = steps_of(chunk);
        var sizes: array<Lanes, STEPS>;
        var dys: array<Lanes, STEPS>;
        for (var t = 0u; t < STEPS; t++) {
            let i = (row + min(t, steps - 1u)) * p.d + within(channel);
            let exists = inside(channel) & vec2(t < steps);
            sizes[t] = select(Lanes(), Lanes(step_sizes[i.x], step_sizes[i.y]), exists);
            dys[t] = select(Lanes(), Lanes(dy[i.x], dy[i.y]), exists);
            total += sizes[t];
        }
        started |= seq_starts;
        for (var j = 0u; j < p.n; j++) {
            let rate = rates(j, channel);
            var rows = load_bc(bc_rows_at(number, j), local);
            // ā_{t+1}·g_{t+1}
            var carry = Lanes();
            if left < at.end || left == p.chunks {
                let i = (number * p.rows + j) * p.d + within(channel);
                carry = Lanes(carries[i.x], carries[i.y]);
            }
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                let g = fma(Lanes(bc_at(&rows, STEPS + u32(t))), dys[t], carry);
                carry = discretize(sizes[t], rate).a_bar * g;
                if SEQ_STARTS == 1u {
                    carry = select(carry, Lanes(), (seq_starts & (1u << u32(t))) != 0u);
                }
            }
            for (var k = 0u; k < VECTOR; k++) {
                let c = channel + k * WIDTH;
                if c < p.d {
                    carries[((number - 1u) * p.rows + j) * p.d + c] = carry[k];
                }
            }
        }
    }
    for (var k = 0u; k < VECTOR; k++) {
        let c = channel + k * WIDTH;
        if c < p.d {
            sums[(at.entry * p.all_segments + at.segment) * p.d + c] =
                select(total[k], RESET, started != 0u);
        }
    }
}

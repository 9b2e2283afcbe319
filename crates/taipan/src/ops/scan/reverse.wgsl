// What each piece but the first passes on to the one before it: an invocation walks through it backwards,
// from no gradient, or that of the last states, and leaves it with the sum of step sizes.
@group(0) @binding(0) var<storage, read> packed: array<f32>;
@group(0) @binding(1) var<storage, read> step_sizes: array<f32>;     // [b, l, d]
@group(0) @binding(2) var<storage, read> dy: array<f32>;             // [b, l, d]
@group(0) @binding(3) var<storage, read_write> carries: array<f32>;  // [b, chunks, n + 2, d]
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;     // [b, pieces, d]
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = place(flat(group, groups));
    let channel = at.block * WIDTH * VECTOR + local;
    if at.unit >= p.end_unit {
        return;
    }
    var total = Lanes();
    var started = 0u;
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let number = at.entry * p.chunks + chunk;
        let starts = u32(packed[starts_at(number)]);
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
        started |= starts;
        for (var j = 0u; j < p.n; j++) {
            let rate = rates(j, channel);
            var rows = rows_from(rows_at(number, j), local);
            // ā_{t+1}·g_{t+1}
            var carry = Lanes();
            if left < at.end || left == p.chunks {
                let i = (number * p.rows + j) * p.d + within(channel);
                carry = Lanes(carries[i.x], carries[i.y]);
            }
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                let g = fma(Lanes(row_at(&rows, STEPS + u32(t))), dys[t], carry);
                carry = hold(sizes[t], rate).decay * g;
                if STARTING == 1u {
                    carry = select(carry, Lanes(), (starts & (1u << u32(t))) != 0u);
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
            sums[(at.entry * p.all_pieces + at.piece) * p.d + c] =
                select(total[k], ENDLESS, started != 0u);
        }
    }
}

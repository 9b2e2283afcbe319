// The sequential scan of a segment by each invocation. If OUTPUT is 1, from the state before the
// segment, to compute y. If it is 0, from a zero state, or from initial_state for the first
// segment, to compute the state after the segment and the sum of its step sizes.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> u: array<Elem>;      // [b, l, d]
@group(0) @binding(2) var<storage, read> delta: array<Elem>;  // [b, l, d]
@group(0) @binding(3) var<storage, read> z: array<Elem>;      // [b, l, d]
@group(0) @binding(4) var<storage, read> initial_state: array<f32>;   // [b, d, n]
@group(0) @binding(5) var<storage, read_write> y: array<Elem>;    // [b, l, d]
// [b, d, n]; without OUTPUT, the sums of step sizes [b, segments, d].
@group(0) @binding(6) var<storage, read_write> final_state: array<f32>;
@group(0) @binding(7) var<storage, read_write> saved: array<f32>;  // [b, chunks, n, d]

// The state before a chunk.
fn state_before(at: Work, channel: u32, chunk: u32, j: u32) -> Lanes {
    let c = within(channel);
    if chunk == 0u {
        if given(INITIAL_STATE) {
            let i = (at.entry * p.d + c) * p.n + j;
            return Lanes(initial_state[i.x], initial_state[i.y]);
        }
    } else if OUTPUT == 1u || chunk > at.first {
        let i = ((at.entry * p.chunks + chunk) * p.n + j) * p.d + c;
        return Lanes(saved[i.x], saved[i.y]);
    }
    return Lanes();
}

fn save_state(number: u32, channel: u32, j: u32, h: Lanes) {
    for (var k = 0u; k < VECTOR; k++) {
        let c = channel + k * WIDTH;
        if c < p.d {
            saved[(number * p.n + j) * p.d + c] = h[k];
        }
    }
}

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
    let c = within(channel);
    let skip = Lanes(prepared[skip_at(c.x)], prepared[skip_at(c.y)]);
    let bias = Lanes(prepared[bias_at(c.x)], prepared[bias_at(c.y)]);
    var total = Lanes();
    var started = 0u;
    for (var chunk = at.first; chunk < at.end; chunk++) {
        let number = at.entry * p.chunks + chunk;
        let seq_starts = u32(prepared[seq_starts_at(number)]);
        let row = at.entry * p.l + chunk * STEPS;
        let steps = steps_of(chunk);
        var us: array<Lanes, STEPS>;
        var sizes: array<Lanes, STEPS>;
        var ys: array<Lanes, STEPS>;
        for (var t = 0u; t < STEPS; t++) {
            let i = (row + min(t, steps - 1u)) * p.d + within(channel);
            let x = Lanes(f32(delta[i.x]), f32(delta[i.y])) + bias;
            let exists = inside(channel) & vec2(t < steps);
            let v = select(Lanes(), Lanes(f32(u[i.x]), f32(u[i.y])), exists);
            let softplus = Lanes(m_softplus(x.x), m_softplus(x.y));
            let size = select(Lanes(), select(softplus, x, given(PLAIN)), exists);
            us[t] = v;
            sizes[t] = size;
            ys[t] = skip * v;
            total += size;
        }
        started |= seq_starts;

        for (var j = 0u; j < p.n; j++) {
            let rate = rates(j, channel);
            var rows = load_bc(bc_rows_at(number, j), local);
            var h = state_before(at, channel, chunk, j);
            if OUTPUT == 1u && chunk == 0u && given(SAVE) {
                save_state(number, channel, j, h);
            }
            for (var t = 0u; t < STEPS; t++) {
                let step = discretize(sizes[t], rate);
                if SEQ_STARTS == 1u {
                    h = select(h, Lanes(), (seq_starts & (1u << t)) != 0u);
                }
                h = fma(step.a_bar, h, step.b_factor * us[t] * bc_at(&rows, t));
                if OUTPUT == 1u {
                    ys[t] = fma(Lanes(bc_at(&rows, STEPS + t)), h, ys[t]);
                }
            }
            if chunk + 1u < at.end || (OUTPUT == 0u && chunk + 1u < p.chunks) {
                save_state(number + 1u, channel, j, h);
            }
            if OUTPUT == 1u && chunk + 1u == p.chunks {
                for (var k = 0u; k < VECTOR; k++) {
                    let c = channel + k * WIDTH;
                    if c < p.d {
                        final_state[(at.entry * p.d + c) * p.n + j] = h[k];
                    }
                }
            }
        }

        if OUTPUT == 1u {
            for (var t = 0u; t < STEPS; t++) {
                for (var k = 0u; k < VECTOR; k++) {
                    let c = channel + k * WIDTH;
                    if t < steps && c < p.d {
                        let i = (row + t) * p.d + c;
                        var out = ys[t][k];
                        if given(GATE) {
                            out *= value(f32(z[i]));
                        }
                        y[i] = Elem(out);
                    }
                }
            }
        }
    }
    if OUTPUT == 0u {
        for (var k = 0u; k < VECTOR; k++) {
            let c = channel + k * WIDTH;
            if c < p.d {
                final_state[(at.entry * p.all_segments + at.segment) * p.d + c] =
                    select(total[k], RESET, started != 0u);
            }
        }
    }
}

// The sequential scan of a segment by each invocation. If OUTPUT is 1, from the state before the
// segment, to compute y. If it is 0, from a zero state, or from initial_state for the first
// segment, to compute the state after the segment and the sum of its step sizes. If it is 2, from
// the saved states, to compute dz = dout·y·silu'(z), with y before its gate.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> u: array<Elem>;      // [b, l, d]
@group(0) @binding(2) var<storage, read> delta: array<Elem>;  // [b, l, d]
@group(0) @binding(3) var<storage, read> z: array<Elem>;      // [b, l, d]
// initial_state [b, d, n]; for OUTPUT 2, dout [b, l, d].
@group(0) @binding(4) var<storage, read> initial_or_dout: array<InitialOrDout>;
// [b, l, d]; for OUTPUT 2, dz.
@group(0) @binding(5) var<storage, read_write> y: array<Elem>;
// [b, d, n]; for OUTPUT 0, the sums of step sizes [b, segments, d].
@group(0) @binding(6) var<storage, read_write> final_state: array<f32>;
@group(0) @binding(7) var<storage, read_write> saved: array<f32>;  // [b, chunks, n, d]

// The state before a chunk.
fn state_before(at: Work, channel: u32, chunk: u32, j: u32) -> f32 {
    if chunk == 0u && OUTPUT != 2u {
        if given(INITIAL_STATE) {
            return f32(initial_or_dout[(at.entry * p.d + channel) * p.n + j]);
        }
        return 0.0;
    }
    if OUTPUT == 0u && chunk == at.first {
        return 0.0;
    }
    return saved[((at.entry * p.chunks + chunk) * p.n + j) * p.d + channel];
}

fn group_main(i: u32, local: u32) {
    let at = work_of(i);
    if at.unit >= p.end_unit {
        return;
    }
    // Invocations beyond the last channel compute it as well, and store nothing: subgroups may need
    // them.
    let exists = at.block * WIDTH + local < p.d;
    let channel = min(at.block * WIDTH + local, p.d - 1u);
    let skip = prepared[skip_at(channel)];
    let bias = prepared[bias_at(channel)];
    var total = 0.0;
    var started = 0u;
    for (var chunk = at.first; chunk < at.end; chunk++) {
        let here = chunk_of(at, chunk);
        var taken: array<Step, STEPS>; // of size 0 behind the end, so that states stay as they are
        var ys: array<f32, STEPS>;
        for (var t = 0u; t < STEPS; t++) {
            let i = (here.row + min(t, here.steps - 1u)) * p.d + channel;
            let x = f32(delta[i]) + bias;
            let size = select(0.0, select(m_softplus(x), x, given(PLAIN)), t < here.steps);
            let input = f32(u[i]);
            taken[t] = step_of(size, input);
            ys[t] = skip * input;
            total += size;
        }
        started |= here.seq_starts;

        for (var j = 0u; j < p.n; j++) {
            let state = state_of(prepared[rate_at(j, channel)]);
            var rows = load_bc(bc_rows_at(here.number, j), local);
            var h = state_before(at, channel, chunk, j);
            if OUTPUT == 1u && chunk == 0u && given(SAVE) && exists {
                saved[(here.number * p.n + j) * p.d + channel] = h;
            }
            for (var t = 0u; t < STEPS; t++) {
                let step = advance(taken[t], state);
                h = select(h, 0.0, starts_at(here.seq_starts, t));
                h = fma(step.x, h, step.y * bc_at(&rows, t));
                if OUTPUT > 0u {
                    ys[t] = fma(bc_at(&rows, STEPS + t), h, ys[t]);
                }
            }
            let saves = chunk + 1u < at.end || (OUTPUT == 0u && chunk + 1u < p.chunks);
            if OUTPUT < 2u && saves && exists {
                saved[((here.number + 1u) * p.n + j) * p.d + channel] = h;
            }
            if OUTPUT == 1u && chunk + 1u == p.chunks && exists {
                final_state[(at.entry * p.d + channel) * p.n + j] = h;
            }
        }

        for (var t = 0u; t < STEPS; t++) {
            if OUTPUT > 0u && t < here.steps && exists {
                let i = (here.row + t) * p.d + channel;
                var out = ys[t];
                if OUTPUT == 1u && given(GATE) {
                    out *= value(f32(z[i]));
                }
                if OUTPUT == 2u {
                    out = gradient(f32(z[i]), f32(initial_or_dout[i]) * out);
                }
                y[i] = Elem(out);
            }
        }
    }
    if OUTPUT == 0u && exists {
        final_state[(at.entry * p.all_segments + at.segment) * p.d + channel] =
            select(total, RESET, started != 0u);
    }
}

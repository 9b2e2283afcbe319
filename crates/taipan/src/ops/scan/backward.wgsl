// The gradients: an invocation walks through its piece backwards, chunk by chunk. With each state it goes
// through the chunk forwards, from the state that was kept, and back. What is summed over channels, it
// sums over its own, or SHARE invocations over theirs, and leaves it as a part.
@group(0) @binding(0) var<storage, read> packed: array<f32>;
@group(0) @binding(1) var<storage, read> u: array<Elem>;    // [b, l, d]
@group(0) @binding(2) var<storage, read> kept: array<f32>;  // [b, chunks, n, d]
// Step sizes, which become ddelta, and dy, which becomes du: both [b, l, d].
@group(0) @binding(3) var<storage, read_write> ddelta: array<f32>;
@group(0) @binding(4) var<storage, read_write> du: array<f32>;
// [b, chunks, n + 2, d]: what comes from the chunk behind becomes what the chunk adds to da_log, and then to dd and
// ddelta_bias. Behind it dstate, [b, n, d].
@group(0) @binding(5) var<storage, read_write> carries: array<f32>;
@group(0) @binding(6) var<storage, read_write> parts: array<f32>;  // of db and dc, each [parts, p.part_rows, n]
@group(0) @binding(7) var<storage, read_write> y: array<f32>;      // [b, l, d], before the gate
@group(1) @binding(0) var<uniform> p: Params;

// A·∂held/∂A = Δ·ā − held = Δ·x·φ₁'(x) with zero-order hold, where x = Δ·A and φ₁'(x) = Σ xᵏ·(k+1)/(k+2)!: near 0
// the difference would cancel.
fn slope_by_rate(size: Lanes, rate: Lanes, step: Held) -> Lanes {
    let x = size * rate;
    var series = Lanes(9.0 / 3628800.0);
    series = fma(series, x, Lanes(8.0 / 362880.0));
    series = fma(series, x, Lanes(7.0 / 40320.0));
    series = fma(series, x, Lanes(6.0 / 5040.0));
    series = fma(series, x, Lanes(5.0 / 720.0));
    series = fma(series, x, Lanes(4.0 / 120.0));
    series = fma(series, x, Lanes(3.0 / 24.0));
    series = fma(series, x, Lanes(2.0 / 6.0));
    series = fma(series, x, Lanes(0.5));
    return select(size * step.decay - step.held, size * x * series, abs(x) < Lanes(0.5));
}

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
    let c = within(channel);
    let skip = Lanes(packed[skip_at(c.x)], packed[skip_at(c.y)]);
    let part = at.block * (WIDTH / SHARE) + local / SHARE;
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let number = at.entry * p.chunks + chunk;
        let starts = u32(packed[starts_at(number)]);
        let row = at.entry * p.l + chunk * STEPS;
        let steps = steps_of(chunk);
        var us: array<Lanes, STEPS>;
        var sizes: array<Lanes, STEPS>;
        var dys: array<Lanes, STEPS>;
        var ys: array<Lanes, STEPS>;
        var by_input: array<Lanes, STEPS>;  // Σ_n g·b·held; by Euler's rule not yet times Δ
        var by_size: array<Lanes, STEPS>;   // Σ_n g·(A·ā·h_{t−1} + u·b·∂held/∂Δ); by Euler's rule without the second term
        for (var t = 0u; t < STEPS; t++) {
            let i = (row + min(t, steps - 1u)) * p.d + within(channel);
            let exists = inside(channel) & vec2(t < steps);
            us[t] = select(Lanes(), Lanes(f32(u[i.x]), f32(u[i.y])), exists);
            sizes[t] = select(Lanes(), Lanes(ddelta[i.x], ddelta[i.y]), exists);
            dys[t] = select(Lanes(), Lanes(du[i.x], du[i.y]), exists);
            ys[t] = Lanes();
            by_input[t] = Lanes();
            by_size[t] = Lanes();
        }

        for (var j = 0u; j < p.n; j++) {
            let rate = rates(j, channel);
            var rows = rows_from(rows_at(number, j), local);
            let from_kept = (number * p.n + j) * p.d + within(channel);
            let from_carries = (number * p.rows + j) * p.d + within(channel);
            var h = select(Lanes(), Lanes(kept[from_kept.x], kept[from_kept.y]), inside(channel));
            // ā_{t+1}·g_{t+1}
            var carry = select(Lanes(), Lanes(carries[from_carries.x], carries[from_carries.y]), inside(channel));
            var decays: array<Lanes, STEPS>;
            var helds: array<Lanes, STEPS>;
            var decayed: array<Lanes, STEPS>;  // ā·h_{t−1}
            for (var t = 0u; t < STEPS; t++) {
                let step = hold(sizes[t], rate);
                decays[t] = step.decay;
                helds[t] = step.held;
                if STARTING == 1u {
                    h = select(h, Lanes(), (starts & (1u << t)) != 0u);
                }
                decayed[t] = step.decay * h;
                h = fma(step.held * us[t], Lanes(row_at(&rows, t)), decayed[t]);
            }
            var da = Lanes();
            var sums: Sums;
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                let b = row_at(&rows, u32(t));
                let c = row_at(&rows, STEPS + u32(t));
                let input = helds[t] * us[t];
                let h = fma(input, Lanes(b), decayed[t]);
                let g = fma(Lanes(c), dys[t], carry);
                ys[t] = fma(Lanes(c), h, ys[t]);
                let lost = rate * (g * decayed[t]);
                da = fma(sizes[t], lost, da);
                let gb = g * b;
                carry = decays[t] * g;
                if ZERO_ORDER == 1u {
                    let step = Held(decays[t], helds[t]);
                    by_input[t] = fma(gb, step.held, by_input[t]);
                    by_size[t] += lost + us[t] * carry * b;
                    da = fma(us[t] * gb, slope_by_rate(sizes[t], rate, step), da);
                } else {
                    by_input[t] += gb;
                    by_size[t] += lost;
                }
                if STARTING == 1u {
                    carry = select(carry, Lanes(), (starts & (1u << u32(t))) != 0u);
                }
                join(&sums, u32(t), dot(g, input), local);
                join(&sums, STEPS + u32(t), dot(dys[t], h), local);
            }
            for (var i = 0u; i < 2u * STEPS / SHARE; i++) {
                let e = i * SHARE + local % SHARE;
                if e % STEPS < steps {
                    let line = (e / STEPS * p.parts + part) * p.part_rows + row - p.first_row;
                    parts[(line + e % STEPS) * p.n + j] = sums[i];
                }
            }
            for (var k = 0u; k < VECTOR; k++) {
                let c = channel + k * WIDTH;
                if c < p.d {
                    carries[(number * p.rows + j) * p.d + c] = da[k];
                    if chunk > at.first {
                        carries[((number - 1u) * p.rows + j) * p.d + c] = carry[k];
                    } else if chunk == 0u {
                        carries[p.b * p.chunks * p.rows * p.d + (at.entry * p.n + j) * p.d + c] = carry[k];
                    }
                }
            }
        }

        var dd = Lanes();
        var dbias = Lanes();
        for (var t = 0u; t < STEPS; t++) {
            for (var k = 0u; k < VECTOR; k++) {
                let c = channel + k * WIDTH;
                if t < steps && c < p.d {
                    let i = (row + t) * p.d + c;
                    let size = sizes[t][k];
                    var by_size = by_size[t][k];
                    var by_input = by_input[t][k];
                    if ZERO_ORDER == 0u {
                        by_size = fma(us[t][k], by_input, by_size);
                        by_input *= size;
                    }
                    // softplus' = sigmoid = 1 − exp(−softplus)
                    let ddelta_ = by_size * select(-m_exp_m1(-size), 1.0, given(PLAIN));
                    du[i] = fma(skip[k], dys[t][k], by_input);
                    ddelta[i] = ddelta_;
                    dd[k] = fma(dys[t][k], us[t][k], dd[k]);
                    dbias[k] += ddelta_;
                    if given(GATE) {
                        y[i] = fma(skip[k], us[t][k], ys[t][k]);
                    }
                }
            }
        }
        for (var k = 0u; k < VECTOR; k++) {
            let c = channel + k * WIDTH;
            if c < p.d {
                carries[(number * p.rows + p.n) * p.d + c] = dd[k];
                carries[(number * p.rows + p.n + 1u) * p.d + c] = dbias[k];
            }
        }
    }
}

// The gradients: an invocation scans its segment backwards, chunk by chunk. For each state it
// recomputes the chunk forwards, from the saved state, and then goes back. Sums over channels are
// first those of one invocation, or of SHARE of them, written as partial sums.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> u: array<Elem>;    // [b, l, d]
@group(0) @binding(2) var<storage, read> saved: array<f32>;  // [b, chunks, n, d]
// Step sizes, which become ddelta, and dy, which becomes du: both [b, l, d].
@group(0) @binding(3) var<storage, read_write> ddelta: array<f32>;
@group(0) @binding(4) var<storage, read_write> du: array<f32>;
// [b, chunks, n + 2, d]: the carry from the chunk after becomes this chunk's contribution to
// da_log; the last two rows are those to dd and ddelta_bias. Then dinitial_state, [b, n, d].
@group(0) @binding(5) var<storage, read_write> carries: array<f32>;
// Of db and dc: [2, p.partials, p.partial_rows, n].
@group(0) @binding(6) var<storage, read_write> partials: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;  // [b, l, d], before the gate

// A·∂b_factor/∂A = Δ·ā − b_factor = Δ·x·φ₁'(x) with zero-order hold, where x = Δ·A. Near 0 the
// difference would cancel: there, the series φ₁'(x) = Σ xᵏ·(k+1)/(k+2)! is used.
fn b_factor_derivative(size: Lanes, rate: Lanes, step: Discretized) -> Lanes {
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
    return select(size * step.a_bar - step.b_factor, size * x * series, abs(x) < Lanes(0.5));
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
    let partial = at.block * (WIDTH / SHARE) + local / SHARE;
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let number = at.entry * p.chunks + chunk;
        let seq_starts = u32(prepared[seq_starts_at(number)]);
        let row = at.entry * p.l + chunk * STEPS;
        let steps = steps_of(chunk);
        var us: array<Lanes, STEPS>;
        var sizes: array<Lanes, STEPS>;
        var dys: array<Lanes, STEPS>;
        var ys: array<Lanes, STEPS>;
        // Σ_n g·b·b_factor; with Euler's method, not yet multiplied by Δ.
        var by_input: array<Lanes, STEPS>;
        // Σ_n g·(A·ā·h_{t−1} + u·b·∂b_factor/∂Δ); with Euler's method, without the second term.
        var by_size: array<Lanes, STEPS>;
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
            var rows = load_bc(bc_rows_at(number, j), local);
            let from_kept = (number * p.n + j) * p.d + within(channel);
            let from_carries = (number * p.rows + j) * p.d + within(channel);
            var h = select(Lanes(), Lanes(saved[from_kept.x], saved[from_kept.y]), inside(channel));
            // ā_{t+1}·g_{t+1}
            let carried = Lanes(carries[from_carries.x], carries[from_carries.y]);
            var carry = select(Lanes(), carried, inside(channel));
            var a_bars: array<Lanes, STEPS>;
            var b_factors: array<Lanes, STEPS>;
            var decayed: array<Lanes, STEPS>;  // ā·h_{t−1}
            for (var t = 0u; t < STEPS; t++) {
                let step = discretize(sizes[t], rate);
                a_bars[t] = step.a_bar;
                b_factors[t] = step.b_factor;
                if SEQ_STARTS == 1u {
                    h = select(h, Lanes(), (seq_starts & (1u << t)) != 0u);
                }
                decayed[t] = step.a_bar * h;
                h = fma(step.b_factor * us[t], Lanes(bc_at(&rows, t)), decayed[t]);
            }
            var da = Lanes();
            var sums: BcGrads;
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                let b = bc_at(&rows, u32(t));
                let c = bc_at(&rows, STEPS + u32(t));
                let input = b_factors[t] * us[t];
                let h = fma(input, Lanes(b), decayed[t]);
                let g = fma(Lanes(c), dys[t], carry);
                ys[t] = fma(Lanes(c), h, ys[t]);
                let by_decay = rate * (g * decayed[t]);
                da = fma(sizes[t], by_decay, da);
                let gb = g * b;
                carry = a_bars[t] * g;
                if ZERO_ORDER_HOLD == 1u {
                    let step = Discretized(a_bars[t], b_factors[t]);
                    by_input[t] = fma(gb, step.b_factor, by_input[t]);
                    by_size[t] += by_decay + us[t] * carry * b;
                    da = fma(us[t] * gb, b_factor_derivative(sizes[t], rate, step), da);
                } else {
                    by_input[t] += gb;
                    by_size[t] += by_decay;
                }
                if SEQ_STARTS == 1u {
                    carry = select(carry, Lanes(), (seq_starts & (1u << u32(t))) != 0u);
                }
                sum_bc_grads(&sums, u32(t), dot(g, input), local);
                sum_bc_grads(&sums, STEPS + u32(t), dot(dys[t], h), local);
            }
            for (var i = 0u; i < 2u * STEPS / SHARE; i++) {
                let e = i * SHARE + local % SHARE;
                if e % STEPS < steps {
                    let first = (e / STEPS * p.partials + partial) * p.partial_rows;
                    let line = first + row - p.first_row;
                    partials[(line + e % STEPS) * p.n + j] = sums[i];
                }
            }
            for (var k = 0u; k < VECTOR; k++) {
                let c = channel + k * WIDTH;
                if c < p.d {
                    carries[(number * p.rows + j) * p.d + c] = da[k];
                    if chunk > at.first {
                        carries[((number - 1u) * p.rows + j) * p.d + c] = carry[k];
                    } else if chunk == 0u {
                        let dinitial_state = p.b * p.chunks * p.rows * p.d;
                        carries[dinitial_state + (at.entry * p.n + j) * p.d + c] = carry[k];
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
                    if ZERO_ORDER_HOLD == 0u {
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

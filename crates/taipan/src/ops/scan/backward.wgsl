// The gradients: an invocation scans its segment backwards, chunk by chunk. For each state it
// recomputes the chunk forwards, from the saved state, and then goes back. Loops over steps have
// constant bounds and index their arrays by the step alone: compilers unroll them, and the arrays
// become registers. Few more would not fit the registers of a GPU.
//
// db and dc are sums over channels: over a team of neighbouring invocations here, and over teams by
// another kernel.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> u: array<Elem>;    // [b, l, d]
@group(0) @binding(2) var<storage, read> saved: array<f32>;  // [b, chunks, n, d]
// Step sizes, which become ddelta, and dy, which becomes du: both [b, l, d].
@group(0) @binding(3) var<storage, read_write> ddelta: array<f32>;
@group(0) @binding(4) var<storage, read_write> du: array<f32>;
// [b, segments, 2·n + 2, d]: the gradients of the states after a segment, which become those of the
// states before it; then the segment's contributions to da_log, dd and ddelta_bias.
@group(0) @binding(5) var<storage, read_write> carries: array<f32>;
// Of db and dc: [teams, partial_chunks, n, 2, STEPS].
@group(0) @binding(6) var<storage, read_write> partials: array<f32>;
// With OUTPUT and a gate, y without its gate: [b, l, d]. Elsewhere there are no registers for it.
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

const QUADS = STEPS / 4u;

// With zero-order hold and the adapter's own exp2, b_factor is Δ·ā − A·∂b_factor/∂A, which does not
// cancel: ā is one instruction, and the derivative is held. A polynomial gives ā and b_factor
// together, and the derivative follows from them.
const HOLD_DERIVATIVE = ZERO_ORDER_HOLD == 1u && NATIVE_EXP2 == 1u;

// p of φ₁'(x) = p(x·log₂e)·log₂e, for |x| ≤ 0.4: within 1.6e-6.
const PHI1_DERIVATIVE_BOUND = 0.4 / LN_2;
const PHI1_DERIVATIVE =
    array<f32, 5>(0.34657347, 0.16014649, 0.041630257, 0.007749304, 0.0011087515);

// A·∂b_factor/∂A = Δ·ā − b_factor = Δ·x·φ₁'(x) with zero-order hold, where x = Δ·A. Near 0 the
// difference cancels.
fn derivative_of(size: f32, rate: f32, step: Discretized) -> f32 {
    if ZERO_ORDER_HOLD == 0u {
        return 0.0;
    }
    let x = size * rate;
    var series = fma(PHI1_DERIVATIVE[4], x, PHI1_DERIVATIVE[3]);
    series = fma(series, x, PHI1_DERIVATIVE[2]);
    series = fma(series, x, PHI1_DERIVATIVE[1]);
    series = fma(series, x, PHI1_DERIVATIVE[0]);
    let difference = fma(size, step.a_bar, -step.b_factor);
    return select(difference, size * x * series, abs(x) < PHI1_DERIVATIVE_BOUND);
}

// With RECOMPUTE, the same number as one that the compiler does not know: it then computes what
// follows from it again, instead of holding it in registers that it does not have.
fn recomputed(x: f32) -> f32 {
    return select(x, x + p.zero, RECOMPUTE == 1u);
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = work_of(flat(group, groups));
    if at.unit >= p.end_unit {
        return;
    }
    let channel = at.block * WIDTH + local;
    // Invocations beyond the last channel add zeros to the sums of their team.
    let exists = channel < p.d;
    let c = min(channel, p.d - 1u);
    let skip = prepared[skip_at(c)];
    let own = (at.entry * p.all_segments + at.segment) * (2u * p.n + 2u);
    var dd = 0.0;
    var dbias = 0.0;
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let number = at.entry * p.chunks + chunk;
        let seq_starts = u32(prepared[seq_starts_at(number)]);
        let row = at.entry * p.l + chunk * STEPS;
        let steps = steps_of(chunk);
        var sizes: array<f32, STEPS>; // 0 behind the end, as dy: such a step changes nothing
        var inputs: array<f32, STEPS>; // u, with Euler's method Δ·u
        var dys: array<f32, STEPS>;
        // Σ_n g·b·b_factor; with Euler's method, not yet multiplied by Δ.
        var by_input: array<f32, STEPS>;
        // Σ_n g·(A·ā·h_{t−1} + u·b·∂b_factor/∂Δ); with Euler's method, without the second term.
        var by_size: array<f32, STEPS>;
        var ys: array<f32, STEPS>;
        for (var t = 0u; t < STEPS; t++) {
            let i = (row + min(t, steps - 1u)) * p.d + c;
            let there = exists && t < steps;
            let size = select(0.0, ddelta[i], there);
            let input = select(0.0, f32(u[i]), exists);
            sizes[t] = size;
            inputs[t] = select(size * input, input, ZERO_ORDER_HOLD == 1u);
            dys[t] = select(0.0, du[i], there);
            dd = fma(dys[t], input, dd);
            by_input[t] = 0.0;
            by_size[t] = 0.0;
            ys[t] = skip * input;
        }

        for (var j = 0u; j < p.n; j++) {
            let rate = prepared[rate_at(j, c)];
            let inverse = inverse_of(rate);
            var rows = load_bc(bc_rows_at(number, j), local);
            var h = select(0.0, saved[(number * p.n + j) * p.d + c], exists);
            var decayed: array<f32, STEPS>; // ā·h_{t−1}
            // A·∂b_factor/∂A, if it is computed here.
            var derivatives: array<f32, STEPS>;
            var quad = vec4<f32>();
            for (var t = 0u; t < STEPS; t++) {
                var step = discretize_directly(sizes[t], rate, inverse);
                if HOLD_DERIVATIVE {
                    derivatives[t] = derivative_of(sizes[t], rate, step);
                    step.b_factor = fma(sizes[t], step.a_bar, -derivatives[t]);
                }
                h = select(h, 0.0, starts_at(seq_starts, t));
                decayed[t] = step.a_bar * h;
                h = fma(scaled_input(inputs[t], step.b_factor), bc_at(&rows, t), decayed[t]);
                quad[t % 4u] = dys[t] * h;
                if OUTPUT == 1u {
                    ys[t] = fma(bc_at(&rows, STEPS + t), h, ys[t]);
                }
                if t % 4u == 3u {
                    put_terms(QUADS + t / 4u, quad, local);
                }
            }

            var carry = select(0.0, carries[(own + j) * p.d + c], exists); // ā_{t+1}·g_{t+1}
            var da = 0.0;
            var da_b = 0.0;
            let rate_again = recomputed(rate);
            let a = rate_again * LN_2;
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                let b = bc_at(&rows, u32(t));
                let g = fma(bc_at(&rows, STEPS + u32(t)), dys[t], carry);
                let lost = g * decayed[t];
                da = fma(sizes[t], lost, da);
                by_size[t] = fma(a, lost, by_size[t]);
                var step = discretize_directly(sizes[t], rate_again, inverse);
                var derivative = derivatives[t];
                if HOLD_DERIVATIVE {
                    step.b_factor = fma(sizes[t], step.a_bar, -derivative);
                } else {
                    derivative = derivative_of(sizes[t], rate_again, step);
                }
                carry = step.a_bar * g;
                quad[t % 4] = g * inputs[t];
                if ZERO_ORDER_HOLD == 1u {
                    let scaled = g * step.b_factor;
                    let forced = inputs[t] * b;
                    by_input[t] = fma(scaled, b, by_input[t]);
                    by_size[t] = fma(forced, carry, by_size[t]);
                    da_b = fma(g * forced, derivative, da_b);
                    quad[t % 4] = scaled * inputs[t];
                } else {
                    by_input[t] = fma(b, g, by_input[t]);
                }
                if t % 4 == 0 {
                    put_terms(u32(t) / 4u, quad, local);
                }
                carry = select(carry, 0.0, starts_at(seq_starts, u32(t)));
            }
            if exists {
                let earlier = (own + p.n + j) * p.d + c;
                da = fma(a, da, da_b);
                if left < at.end {
                    da += carries[earlier];
                }
                carries[earlier] = da;
                carries[(own + j) * p.d + c] = carry;
            }

            let team = at.block * (WIDTH / TEAM) + local / TEAM;
            let place = team * p.partial_chunks + number - p.first_chunk;
            write_sums((place * p.n + j) * 2u * STEPS, local);
        }

        // In registers first: where the step sizes are loaded and stored in one loop, compilers hold
        // both.
        for (var t = 0u; t < STEPS; t++) {
            let size = sizes[t];
            let scaled = select(size * by_input[t], by_input[t], ZERO_ORDER_HOLD == 1u);
            dys[t] = fma(skip, dys[t], scaled);
            // softplus' = sigmoid = 1 − exp(−softplus)
            sizes[t] = select(-m_exp_m1(-size), 1.0, given(PLAIN));
        }
        for (var t = 0u; t < STEPS; t++) {
            if exists && t < steps {
                let i = (row + t) * p.d + c;
                var whole = by_size[t];
                if ZERO_ORDER_HOLD == 0u {
                    whole = fma(f32(u[i]), by_input[t], whole);
                }
                whole *= sizes[t];
                ddelta[i] = whole;
                du[i] = dys[t];
                dbias += whole;
                if OUTPUT == 1u && given(GATE) {
                    y[i] = ys[t];
                }
            }
        }
    }
    if exists {
        carries[(own + 2u * p.n) * p.d + c] = dd;
        carries[(own + 2u * p.n + 1u) * p.d + c] = dbias;
    }
}

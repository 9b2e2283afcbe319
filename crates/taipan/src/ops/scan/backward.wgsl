// The gradients: an invocation scans its segment backwards, chunk by chunk. For each state it
// recomputes the chunk forwards, from the saved state, and then goes back. Loops over steps have
// constant bounds and index their arrays by the step alone: compilers unroll them, and the arrays
// become registers. Few more would not fit the registers of a GPU: ā is kept where the terms of db
// will be, and sums over chunks are in memory.
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

// p of φ₁'(x) = p(x·log₂e)·log₂e, for |x| ≤ 0.4: within 1.6e-6.
const PHI1_DERIVATIVE_BOUND = 0.4 / LN_2;
const PHI1_DERIVATIVE =
    array<f32, 5>(0.34657347, 0.16014649, 0.041630257, 0.007749304, 0.0011087515);

// A·∂b_factor/∂A = Δ·ā − b_factor = Δ·x·φ₁'(x) with zero-order hold, where x = Δ·A. Near 0 the
// difference cancels.
fn derivative_of(size: f32, rate: f32, step: Discretized) -> f32 {
    let x = size * rate;
    var series = fma(PHI1_DERIVATIVE[4], x, PHI1_DERIVATIVE[3]);
    series = fma(series, x, PHI1_DERIVATIVE[2]);
    series = fma(series, x, PHI1_DERIVATIVE[1]);
    series = fma(series, x, PHI1_DERIVATIVE[0]);
    let difference = fma(size, step.a_bar, -step.b_factor);
    return select(difference, size * x * series, abs(x) < PHI1_DERIVATIVE_BOUND);
}

// Adds to a sum over the chunks of the segment.
fn add_carry(i: u32, x: f32, is_first: bool) {
    var sum = x;
    if !is_first {
        sum += carries[i];
    }
    carries[i] = sum;
}

fn group_main(i: u32, local: u32) {
    let at = work_of(i);
    if at.unit >= p.end_unit {
        return;
    }
    let channel = at.block * WIDTH + local;
    // Invocations beyond the last channel add zeros to the sums of their team.
    let exists = channel < p.d;
    let c = min(channel, p.d - 1u);
    let own = (at.entry * p.all_segments + at.segment) * (2u * p.n + 2u);
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let here = chunk_of(at, chunk);
        var sizes: array<f32, STEPS>; // 0 behind the end, as dy: such a step changes nothing
        var inputs: array<f32, STEPS>; // u, with Euler's method Δ·u
        var dys: array<f32, STEPS>;
        // Σ_n g·b·b_factor; with Euler's method, not yet multiplied by Δ.
        var by_input: array<f32, STEPS>;
        // Σ_n g·(A·ā·h_{t−1} + u·b·∂b_factor/∂Δ); with Euler's method, without the second term.
        var by_size: array<f32, STEPS>;
        var ys: array<f32, STEPS>;
        var dd = 0.0;
        for (var t = 0u; t < STEPS; t++) {
            let i = (here.row + min(t, here.steps - 1u)) * p.d + c;
            let there = exists && t < here.steps;
            let size = select(0.0, ddelta[i], there);
            let input = select(0.0, f32(u[i]), exists);
            sizes[t] = size;
            inputs[t] = select(size * input, input, ZERO_ORDER_HOLD == 1u);
            dys[t] = select(0.0, du[i], there);
            dd = fma(dys[t], input, dd);
            by_input[t] = 0.0;
            by_size[t] = 0.0;
            ys[t] = prepared[skip_at(c)] * input;
        }
        if exists {
            add_carry((own + 2u * p.n) * p.d + c, dd, left == at.end);
        }

        for (var j = 0u; j < p.n; j++) {
            let rate = prepared[rate_at(j, c)];
            let inverse = inverse_of(rate);
            var rows = load_bc(bc_rows_at(here.number, j), local);
            var h = select(0.0, saved[(here.number * p.n + j) * p.d + c], exists);
            var decayed: array<f32, STEPS>; // ā·h_{t−1}
            var derivatives: array<f32, STEPS>; // A·∂b_factor/∂A, with zero-order hold
            var a_bars: array<f32, STEPS>;
            for (var t = 0u; t < STEPS; t++) {
                let step = discretize(sizes[t], rate, inverse);
                a_bars[t] = step.a_bar;
                if ZERO_ORDER_HOLD == 1u {
                    derivatives[t] = derivative_of(sizes[t], rate, step);
                }
            }
            for (var q = 0u; q < QUADS; q++) {
                let t = 4u * q;
                keep(q, vec4(a_bars[t], a_bars[t + 1u], a_bars[t + 2u], a_bars[t + 3u]), local);
            }
            var quad = vec4<f32>();
            for (var t = 0u; t < STEPS; t++) {
                var input = inputs[t];
                if ZERO_ORDER_HOLD == 1u {
                    // b_factor is Δ·ā − A·∂b_factor/∂A, which does not cancel.
                    input *= fma(sizes[t], a_bars[t], -derivatives[t]);
                }
                h = select(h, 0.0, starts_at(here.seq_starts, t));
                decayed[t] = a_bars[t] * h;
                h = fma(input, bc_at(&rows, t), decayed[t]);
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
            let a = rate * LN_2;
            var a_bar = vec4<f32>(); // of four steps
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                if t % 4 == 3 {
                    a_bar = kept(u32(t) / 4u, local);
                }
                let b = bc_at(&rows, u32(t));
                let g = fma(bc_at(&rows, STEPS + u32(t)), dys[t], carry);
                let lost = g * decayed[t];
                da = fma(sizes[t], lost, da);
                by_size[t] = fma(a, lost, by_size[t]);
                carry = a_bar[t % 4] * g;
                var scaled = g; // with zero-order hold, times b_factor
                if ZERO_ORDER_HOLD == 1u {
                    let by_derivative = g * derivatives[t];
                    let forced = inputs[t] * b;
                    scaled = fma(sizes[t], carry, -by_derivative);
                    by_size[t] = fma(forced, carry, by_size[t]);
                    da_b = fma(forced, by_derivative, da_b);
                }
                by_input[t] = fma(b, scaled, by_input[t]);
                quad[t % 4] = scaled * inputs[t];
                if t % 4 == 0 {
                    put_terms(u32(t) / 4u, quad, local);
                }
                carry = select(carry, 0.0, starts_at(here.seq_starts, u32(t)));
            }
            if exists {
                carries[(own + j) * p.d + c] = carry;
                add_carry((own + p.n + j) * p.d + c, fma(a, da, da_b), left == at.end);
            }

            let team = at.block * (WIDTH / TEAM) + local / TEAM;
            let place = team * p.partial_chunks + here.number - p.first_chunk;
            write_sums((place * p.n + j) * 2u * STEPS, local);
        }

        let skip = prepared[skip_at(c)];
        var dbias = 0.0;
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
            if exists && t < here.steps {
                let i = (here.row + t) * p.d + c;
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
        if exists {
            add_carry((own + 2u * p.n + 1u) * p.d + c, dbias, left == at.end);
        }
    }
}

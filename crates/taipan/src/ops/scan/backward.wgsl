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
// Of db and dc: [partial_chunks, n, teams, 2, STEPS].
@group(0) @binding(6) var<storage, read_write> partials: array<f32>;
// With OUTPUT and a gate, y without its gate: [b, l, d]. Elsewhere there are no registers for it.
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

// With zero-order hold, b_factor is Δ·φ₁(x), where φ₁(x) = (ā − 1)/x and x = Δ·A. Gradients need
// φ₁' = (ā − φ₁)/x, too, which cancels near 0. For |x| < bound it is y + z·ā + w·x·ā instead.
struct Fit {
    bound: f32,
    y: f32,
    z: f32,
    w: f32,
}
// For x ≤ 0, within 3.8e-6.
const DECAYING_FIT = Fit(0.22, 0.07972723, 0.42027089, -0.08709236);
// For all x, within 9.4e-6: step sizes that are not the result of softplus can be negative.
const PLAIN_FIT = Fit(0.15, 0.08325788, 0.41674215, -0.08331511);

// Beyond it ā is 0, and φ₁', which is 1/x², could be too.
const MAX_SIZE = 1e10;

// ā, φ₁ and φ₁'.
struct Phi1 {
    a_bar: f32,
    value: f32,
    derivative: f32,
}

// `wa` is w·A of the fit.
fn phi1_of(size: f32, rate: f32, wa: f32, fit: Fit) -> Phi1 {
    let x = size * (rate * LN_2);
    let inverse = 1.0 / x;
    let step = discretize(size, rate, inverse);
    let near_0 = fma(fma(size, wa, fit.z), step.a_bar, fit.y);
    let difference = (step.a_bar - step.b_factor) * inverse;
    let derivative = select(difference, near_0, abs(x) < fit.bound);
    // φ₁ from the derivative, because that does not cancel.
    return Phi1(step.a_bar, fma(-x, derivative, step.a_bar), derivative);
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
    var fit = DECAYING_FIT;
    if given(PLAIN) {
        fit = PLAIN_FIT;
    }
    for (var left = at.end; left > at.first; left--) {
        let chunk = left - 1u;
        let here = chunk_of(at, chunk);
        var sizes: array<f32, STEPS>; // 0 behind the end, as dy: such a step changes nothing
        var inputs: array<f32, STEPS>; // Δ·u
        var dys: array<f32, STEPS>;
        var by_input: array<f32, STEPS>; // Σ_n g·b·φ₁, where φ₁ is 1 with Euler's method
        // Σ_n A·g·(ā·h_{t−1} + Δ·u·b·φ₁'). As φ₁ + x·φ₁' = ā, this and u·by_input are dΔ.
        var by_size: array<f32, STEPS>;
        var ys: array<f32, STEPS>;
        var dd = 0.0;
        for (var t = 0u; t < STEPS; t++) {
            let i = (here.row + min(t, here.steps - 1u)) * p.d + c;
            let there = exists && t < here.steps;
            var size = select(0.0, ddelta[i], there);
            if ZERO_ORDER_HOLD == 1u {
                size = select(size, MAX_SIZE, size > MAX_SIZE);
            }
            let input = select(0.0, f32(u[i]), exists);
            sizes[t] = size;
            inputs[t] = size * input;
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
            let a = rate * LN_2;
            let wa = fit.w * a;
            var rows = load_bc(bc_rows_at(here.number, j), local);
            var h = saved[(here.number * p.n + j) * p.d + c];
            var values: array<f32, STEPS>; // φ₁, with zero-order hold
            var by_rate: array<f32, STEPS>; // ∂h/∂x = ā·h_{t−1} + Δ·u·b·φ₁'
            for (var t = 0u; t < STEPS; t++) {
                var step: Phi1;
                if ZERO_ORDER_HOLD == 1u {
                    step = phi1_of(sizes[t], rate, wa, fit);
                    values[t] = step.value;
                } else {
                    step = Phi1(decay(sizes[t], rate), 1.0, 0.0);
                }
                keep(t, step.a_bar, local);
                let decayed = step.a_bar * select(h, 0.0, starts_at(here.seq_starts, t));
                let input = inputs[t] * bc_at(&rows, t);
                by_rate[t] = decayed;
                if ZERO_ORDER_HOLD == 1u {
                    by_rate[t] = fma(input, step.derivative, decayed);
                }
                h = fma(input, step.value, decayed);
                put_term(STEPS + t, dys[t] * h, local);
                if OUTPUT == 1u {
                    ys[t] = fma(bc_at(&rows, STEPS + t), h, ys[t]);
                }
            }

            var carry = select(0.0, carries[(own + j) * p.d + c], exists); // ā_{t+1}·g_{t+1}
            var da = 0.0;
            for (var t = i32(STEPS) - 1; t >= 0; t--) {
                let g = fma(bc_at(&rows, STEPS + u32(t)), dys[t], carry);
                let by_x = g * by_rate[t];
                da = fma(sizes[t], by_x, da);
                by_size[t] = fma(a, by_x, by_size[t]);
                carry = kept(u32(t), local) * g;
                var scaled = g;
                if ZERO_ORDER_HOLD == 1u {
                    scaled *= values[t];
                }
                by_input[t] = fma(bc_at(&rows, u32(t)), scaled, by_input[t]);
                put_term(u32(t), scaled * inputs[t], local);
                carry = select(carry, 0.0, starts_at(here.seq_starts, u32(t)));
            }
            if exists {
                carries[(own + j) * p.d + c] = carry;
                add_carry((own + p.n + j) * p.d + c, a * da, left == at.end);
            }

            let state = (here.number - p.first_chunk) * p.n + j;
            write_sums((state * p.teams + at.block * (WIDTH / TEAM)) * 2u * STEPS, local);
        }

        let skip = prepared[skip_at(c)];
        var dbias = 0.0;
        // In registers first: where the step sizes are loaded and stored in one loop, compilers hold
        // both.
        for (var t = 0u; t < STEPS; t++) {
            let size = sizes[t];
            dys[t] = fma(skip, dys[t], size * by_input[t]);
            // softplus' = sigmoid = 1 − exp(−softplus)
            sizes[t] = select(-m_exp_m1(-size), 1.0, given(PLAIN));
        }
        for (var t = 0u; t < STEPS; t++) {
            if exists && t < here.steps {
                let i = (here.row + t) * p.d + c;
                let whole = fma(f32(u[i]), by_input[t], by_size[t]) * sizes[t];
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

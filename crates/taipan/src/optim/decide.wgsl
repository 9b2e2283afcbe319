// One workgroup adds up the partial sums, [len], and one of its invocations updates the counters,
// the loss scale and the plan.
@group(0) @binding(0) var<storage, read> sums: array<f32>;
@group(0) @binding(1) var<storage, read_write> counters: array<u32>;
@group(0) @binding(2) var<storage, read_write> scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> plan: array<f32>;

// Sums that an invocation adds up at a time: sums in two levels have a smaller error.
const RUN = 32u;

fn line(i: u32, local: u32) {
    var sum = 0.0;
    for (var start = 0u; start < p.len; start += RUN * WIDTH) {
        var run = 0.0;
        let end = min(start + RUN * WIDTH, p.len);
        for (var j = start + local; j < end; j += WIDTH) {
            run += sums[j];
        }
        sum += run;
    }
    sum = workgroup_join(sum, local);
    if local == 0u {
        decide(sum);
    }
}

fn decide(sum: f32) {
    let now = scale[0];
    let norm = m_divide(m_sqrt(sum), now);
    let finite = (bitcast<u32>(sum) & M_INFINITY) != M_INFINITY && norm <= p.max_finite_norm;
    var next = now;
    if finite {
        let t = counters[STEPS] + 1u;
        counters[STEPS] = t;
        counters[SINCE] += 1u;
        if p.growth_interval != 0u && counters[SINCE] >= p.growth_interval {
            next = min(2.0 * now, p.max_loss_scale);
            counters[SINCE] = 0u;
        }
        let padded = norm + p.norm_eps;
        var clip = 1.0;
        if padded > p.max_norm {
            clip = m_divide(p.max_norm, padded);
        }
        plan[FACTOR] = m_divide(clip, now);
        plan[UNBIAS_M] = 1.0 / -m_exp_m1(f32(t) * p.ln_beta1);
        plan[UNBIAS_ROOT_V] = 1.0 / m_sqrt(-m_exp_m1(f32(t) * p.ln_beta2));
    } else {
        counters[SKIPPED] += 1u;
        if p.growth_interval != 0u {
            next = max(0.5 * now, p.min_loss_scale);
            counters[SINCE] = 0u;
        }
    }
    plan[APPLY] = select(0.0, 1.0, finite);
    scale[0] = next;
    counters[SCALE] = bitcast<u32>(next);
    // NaN and infinity by their bits; a finite sum with too great a norm counts as infinite.
    let not_finite = max(bitcast<u32>(sum), M_INFINITY);
    counters[NORM] = select(not_finite, bitcast<u32>(norm), finite);
}

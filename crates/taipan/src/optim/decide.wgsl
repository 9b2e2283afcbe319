// One workgroup sums sums, [len], and one invocation of it decides what becomes of the step.
@group(0) @binding(0) var<storage, read> sums: array<f32>;
@group(0) @binding(1) var<storage, read_write> record: array<u32>;
@group(0) @binding(2) var<storage, read_write> scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> plan: array<f32>;
@group(1) @binding(0) var<uniform> p: Params;

// The words of the record: see decide.rs.
const STEPS = 0u;
const SKIPPED = 1u;
const SINCE = 2u;
const SCALE = 3u;
const NORM = 4u;

// Sums that an invocation adds up at a time, so that the error grows more slowly than their number.
const RUN = 32u;

var<workgroup> part: array<f32, GROUP>;

@compute @workgroup_size(GROUP)
fn main(@builtin(local_invocation_index) local: u32) {
    var sum = 0.0;
    for (var start = 0u; start < p.len; start += RUN * GROUP) {
        var run = 0.0;
        let end = min(start + RUN * GROUP, p.len);
        for (var j = start + local; j < end; j += GROUP) {
            run += sums[j];
        }
        sum += run;
    }
    part[local] = sum;
    for (var half = GROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            part[local] += part[local + half];
        }
    }
    if local == 0u {
        decide(part[0]);
    }
}

fn decide(sum: f32) {
    let now = scale[0];
    let norm = m_divide(m_sqrt(sum), now);
    let finite = (bitcast<u32>(sum) & M_INFINITY) != M_INFINITY && norm <= p.greatest_norm;
    var next = now;
    if finite {
        let t = record[STEPS] + 1u;
        record[STEPS] = t;
        record[SINCE] += 1u;
        if p.growth_interval != 0u && record[SINCE] >= p.growth_interval {
            next = min(2.0 * now, p.greatest_scale);
            record[SINCE] = 0u;
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
        record[SKIPPED] += 1u;
        if p.growth_interval != 0u {
            next = max(0.5 * now, p.least_scale);
            record[SINCE] = 0u;
        }
    }
    plan[APPLY] = select(0.0, 1.0, finite);
    scale[0] = next;
    record[SCALE] = bitcast<u32>(next);
    // NaN and infinity by their bits; a finite sum of too great a norm counts as infinite.
    let not_finite = max(bitcast<u32>(sum), M_INFINITY);
    record[NORM] = select(not_finite, bitcast<u32>(norm), finite);
}

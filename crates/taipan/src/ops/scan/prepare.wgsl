// Gathers the small inputs of all kernels of the scan in one buffer: see prepared.wgsl. One element
// per invocation.
@group(0) @binding(0) var<storage, read> a_log: array<f32>;       // [d, n]
@group(0) @binding(1) var<storage, read> b: array<Elem>;          // [b, l, n]
@group(0) @binding(2) var<storage, read> c: array<Elem>;          // [b, l, n]
@group(0) @binding(3) var<storage, read> skip: array<f32>;        // [d]
@group(0) @binding(4) var<storage, read> delta_bias: array<f32>;  // [d]
@group(0) @binding(5) var<storage, read> seq_start: array<u32>;       // [b, l]
@group(0) @binding(6) var<storage, read_write> prepared: array<f32>;

// Below the minimum, exp(Δ·A) is 1 anyway, and 1/A could be infinite; above the maximum, Δ·A could
// be.
const MIN_A_LOG = -80.0;
const MAX_A_LOG = 60.0;

// A bit mask of the steps of a chunk at which a sequence starts.
fn seq_starts_of(entry: u32, chunk: u32) -> u32 {
    var mask = 0u;
    let first = chunk * STEPS;
    for (var t = first; t < min(first + STEPS, p.l); t++) {
        mask |= select(0u, 1u, seq_start[entry * p.l + t] != 0u) << (t - first);
    }
    return mask;
}

fn element(i: u32) {
    var value = 0.0;
    if i < skip_at(0u) {
        let x = a_log[i % p.d * p.n + i / p.d];
        let above = select(x, MIN_A_LOG, x < MIN_A_LOG);
        value = -m_exp(select(above, MAX_A_LOG, x > MAX_A_LOG)) * M_LOG2_E;
    } else if i < bias_at(0u) {
        if given(SKIP) {
            value = skip[i - skip_at(0u)];
        }
    } else if i < seq_starts_at(0u) {
        if given(DELTA_BIAS) {
            value = delta_bias[i - bias_at(0u)];
        }
    } else if i < bc_rows_at(0u, 0u) {
        if given(SEQ_START) {
            let chunk = i - seq_starts_at(0u);
            value = f32(seq_starts_of(chunk / p.chunks, chunk % p.chunks));
        }
    } else {
        let at = i - bc_rows_at(0u, 0u);
        let state = at / (2u * STEPS) % p.n;
        let chunk = at / (2u * STEPS) / p.n;
        let t = chunk % p.chunks * STEPS + at % STEPS;
        if t < p.l {
            let row = (chunk / p.chunks * p.l + t) * p.n + state;
            if at / STEPS % 2u == 0u {
                value = f32(b[row]);
            } else {
                value = f32(c[row]);
            }
        }
    }
    prepared[i] = value;
}

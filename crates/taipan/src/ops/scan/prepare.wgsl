// What all kernels of the scan read in small amounts, as one buffer: see packed.wgsl. One number per
// invocation.
@group(0) @binding(0) var<storage, read> a_log: array<f32>;       // [d, n]
@group(0) @binding(1) var<storage, read> b: array<Elem>;          // [b, l, n]
@group(0) @binding(2) var<storage, read> c: array<Elem>;          // [b, l, n]
@group(0) @binding(3) var<storage, read> skip: array<f32>;        // [d]
@group(0) @binding(4) var<storage, read> delta_bias: array<f32>;  // [d]
@group(0) @binding(5) var<storage, read> starts: array<u32>;      // [b, l]
@group(0) @binding(6) var<storage, read_write> packed: array<f32>;
@group(1) @binding(0) var<uniform> p: Params;

// Below the least, exp(Δ·A) is 1 in any case, and 1/A could be infinite; beyond the most, A.
const LEAST_A_LOG = -80.0;
const MOST_A_LOG = 88.0;

// A bit for each step of a chunk at which a sequence starts.
fn starts_of(entry: u32, chunk: u32) -> u32 {
    var mask = 0u;
    let first = chunk * STEPS;
    for (var t = first; t < min(first + STEPS, p.l); t++) {
        mask |= select(0u, 1u, starts[entry * p.l + t] != 0u) << (t - first);
    }
    return mask;
}

fn element(i: u32) {
    var value = 0.0;
    if i < skip_at(0u) {
        let x = a_log[i % p.d * p.n + i / p.d];
        let above = select(x, LEAST_A_LOG, x < LEAST_A_LOG);
        value = -m_exp(select(above, MOST_A_LOG, x > MOST_A_LOG));
    } else if i < bias_at(0u) {
        if given(SKIP) {
            value = skip[i - skip_at(0u)];
        }
    } else if i < starts_at(0u) {
        if given(DELTA_BIAS) {
            value = delta_bias[i - bias_at(0u)];
        }
    } else if i < rows_at(0u, 0u) {
        if given(STARTS) {
            let chunk = i - starts_at(0u);
            value = f32(starts_of(chunk / p.chunks, chunk % p.chunks));
        }
    } else {
        let at = i - rows_at(0u, 0u);
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
    packed[i] = value;
}

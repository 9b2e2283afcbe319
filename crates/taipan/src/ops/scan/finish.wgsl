// Writes da_log, dd, ddelta_bias and dinitial_state in the layout of their tensors, from the
// carries and their sums. One element of each per invocation.
@group(0) @binding(0) var<storage, read> sums: array<f32>;     // [2·n + 2, d]
@group(0) @binding(1) var<storage, read> carries: array<f32>;  // [b, segments, 2·n + 2, d]
@group(0) @binding(2) var<storage, read_write> da_log: array<f32>;       // [d, n]
@group(0) @binding(3) var<storage, read_write> dd: array<f32>;           // [d]
@group(0) @binding(4) var<storage, read_write> ddelta_bias: array<f32>;  // [d]
@group(0) @binding(5) var<storage, read_write> dinitial_state: array<f32>;       // [b, d, n]

fn element(i: u32) {
    let j = i % p.n;
    let c = i / p.n % p.d;
    let entry = i / p.n / p.d;
    if entry == 0u {
        da_log[i] = sums[(p.n + j) * p.d + c];
    }
    if i < p.d && given(SKIP) {
        dd[i] = sums[2u * p.n * p.d + i];
    }
    if i < p.d && given(DELTA_BIAS) {
        ddelta_bias[i] = sums[(2u * p.n + 1u) * p.d + i];
    }
    if given(INITIAL_STATE) {
        dinitial_state[i] = carries[(entry * p.all_segments * p.rows + j) * p.d + c];
    }
}

// Writes da_log, dd, ddelta_bias and dinitial_state in the layout of their tensors, from the
// carries, or from sums of several of them. One element of each per invocation.
@group(0) @binding(0) var<storage, read> sums: array<f32>;     // [p.sums, 2·n + 2, d]
@group(0) @binding(1) var<storage, read> carries: array<f32>;  // [b, segments, 2·n + 2, d]
@group(0) @binding(2) var<storage, read_write> da_log: array<f32>;       // [d, n]
@group(0) @binding(3) var<storage, read_write> dd: array<f32>;           // [d]
@group(0) @binding(4) var<storage, read_write> ddelta_bias: array<f32>;  // [d]
@group(0) @binding(5) var<storage, read_write> dinitial_state: array<f32>;       // [b, d, n]

fn sum_of(row: u32, c: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < p.sums; i++) {
        sum += sums[(i * p.rows + row) * p.d + c];
    }
    return sum;
}

fn element(i: u32) {
    let j = i % p.n;
    let c = i / p.n % p.d;
    let entry = i / p.n / p.d;
    if entry == 0u {
        da_log[i] = sum_of(p.n + j, c);
    }
    if i < p.d && given(SKIP) {
        dd[i] = sum_of(2u * p.n, i);
    }
    if i < p.d && given(DELTA_BIAS) {
        ddelta_bias[i] = sum_of(2u * p.n + 1u, i);
    }
    if given(INITIAL_STATE) {
        dinitial_state[i] = carries[(entry * p.all_segments * p.rows + j) * p.d + c];
    }
}

// The inputs of the backward scan: the step sizes Δ, dy = dout·silu(z), and the gradient of the
// final state, which is the carry of the last segment. One element of each per invocation.
@group(0) @binding(0) var<storage, read> prepared: array<f32>;
@group(0) @binding(1) var<storage, read> delta: array<Elem>;  // [b, l, d]
@group(0) @binding(2) var<storage, read> z: array<Elem>;      // [b, l, d]
@group(0) @binding(3) var<storage, read> dout: array<Elem>;   // [b, l, d]
@group(0) @binding(4) var<storage, read> dfinal_state: array<f32>;   // [b, d, n]
@group(0) @binding(5) var<storage, read_write> sizes: array<f32>;    // [b, l, d]
@group(0) @binding(6) var<storage, read_write> dy: array<f32>;       // [b, l, d]
@group(0) @binding(7) var<storage, read_write> carries: array<f32>;  // [b, segments, 2·n + 2, d]

fn element(i: u32) {
    let c = i % p.d;
    if i < p.b * p.l * p.d {
        let x = f32(delta[i]) + prepared[bias_at(c)];
        sizes[i] = select(m_softplus(x), x, given(PLAIN));
        var d = f32(dout[i]);
        if given(GATE) {
            d *= value(f32(z[i]));
        }
        dy[i] = d;
    }
    if i < p.b * p.n * p.d {
        let j = i / p.d % p.n;
        let entry = i / p.d / p.n;
        let at = ((entry + 1u) * p.all_segments - 1u) * p.rows + j;
        carries[at * p.d + c] = dfinal_state[(entry * p.d + c) * p.n + j];
    }
}

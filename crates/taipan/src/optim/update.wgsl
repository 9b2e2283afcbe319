// AdamW: an invocation updates an element of m and v, and returns the new θ for an old one. All are
// [len].
@group(0) @binding(0) var<storage, read> plan: array<f32>;
@group(0) @binding(1) var<storage, read> grad: array<Grad>;
@group(0) @binding(2) var<storage, read_write> m: array<f32>;
@group(0) @binding(3) var<storage, read_write> v: array<f32>;

fn updated(i: u32, theta: f32) -> f32 {
    let g = plan[FACTOR] * f32(grad[i]);
    let m_new = fma(p.beta1, m[i], p.gain1 * g);
    let v_new = fma(p.beta2, v[i], p.gain2 * g * g);
    m[i] = m_new;
    v[i] = v_new;
    let root = fma(plan[UNBIAS_ROOT_V], sqrt(v_new), p.eps);
    return theta - fma(p.decay, theta, p.lr * plan[UNBIAS_M] * m_new / root);
}

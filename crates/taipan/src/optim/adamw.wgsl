// AdamW; the decay is multiplied by the learning rate.
@group(0) @binding(TENSORS + 2) var<storage, read_write> v: array<f32>;

// Updates the moments of element j of tensor t, and returns its new θ.
fn updated(t: u32, j: u32, grad: f32, theta: f32) -> f32 {
    let i = p.dims[2u * t].z + j;
    let rates = bitcast<vec2<f32>>(p.dims[2u * t + 1u].xy);
    let g = plan[FACTOR] * grad;
    let m_new = fma(p.beta1, m[i], p.gain1 * g);
    let v_new = fma(p.beta2, v[i], p.gain2 * g * g);
    m[i] = m_new;
    v[i] = v_new;
    let root = fma(plan[UNBIAS_ROOT_V], sqrt(v_new), p.eps);
    return theta - fma(rates.y, theta, rates.x * plan[UNBIAS_M] * m_new / root);
}

// SGD with momentum: beta1 is the momentum; a step is gain1 times the moment and gain2 times the
// gradient. The decay is that of the group.

// Updates the moment of element j of tensor t, and returns its new θ.
fn updated(t: u32, j: u32, grad: f32, theta: f32) -> f32 {
    let i = p.dims[2u * t].z + j;
    let rates = bitcast<vec2<f32>>(p.dims[2u * t + 1u].xy);
    let g = fma(rates.y, theta, plan[FACTOR] * grad);
    let m_new = fma(p.beta1, m[i], g);
    m[i] = m_new;
    return theta - rates.x * fma(p.gain1, m_new, p.gain2 * g);
}

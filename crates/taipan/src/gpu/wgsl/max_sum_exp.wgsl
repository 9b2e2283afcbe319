// For workgroup.wgsl: the maximum of numbers and Σ exp(x − maximum), from which softmax and its
// logarithm are computed; for a NaN the sum is NaN. Comes after math.wgsl.
alias Partial = vec2<f32>;

// Of no number. Only −∞ is below it; if all are −∞, the sum is 0 relative to any number.
const NO_NUMBERS = vec2(-3.4028234e38, 0.0);

fn join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let greatest = max(a.x, b.x);
    return vec2(greatest, a.y * m_exp(a.x - greatest) + b.y * m_exp(b.x - greatest));
}

// join(a, vec2(x, 1.0))
fn join_number(a: vec2<f32>, x: f32) -> vec2<f32> {
    if x > a.x {
        return vec2(x, a.y * m_exp(a.x - x) + 1.0);
    }
    return vec2(a.x, a.y + m_exp(x - a.x));
}

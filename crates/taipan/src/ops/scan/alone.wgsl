// Each invocation leaves parts of its own.
fn joined(x: f32) -> f32 {
    return x;
}

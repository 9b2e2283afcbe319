// For workgroup.wgsl: the sum of floats.
alias Partial = f32;

fn join(a: f32, b: f32) -> f32 {
    return a + b;
}

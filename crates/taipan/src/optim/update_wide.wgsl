// The parameter itself is f32.
@group(0) @binding(4) var<storage, read_write> parameter: array<f32>;

fn element(i: u32) {
    if plan[APPLY] == 1.0 {
        parameter[i] = updated(i, parameter[i]);
    }
}

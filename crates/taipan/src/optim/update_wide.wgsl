
// A workgroup updates a block of parameter #, which is f32 itself.
@group(0) @binding(# + 1) var<storage, read> grad#: array<Grad>;
@group(0) @binding(TENSORS + MOMENTS + # + 1) var<storage, read_write> parameter#: array<f32>;

fn of_tensor#(first: u32, end: u32, local: u32) -> f32 {
    if plan[APPLY] == 1.0 {
        for (var j = first + local; j < end; j += GROUP) {
            parameter#[j] = updated(#u, j, f32(grad#[j]), parameter#[j]);
        }
    }
    return 0.0;
}

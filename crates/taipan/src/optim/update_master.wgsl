
// A workgroup updates a block of parameter #, which is its master copy, rounded.
@group(0) @binding(# + 1) var<storage, read> grad#: array<Grad>;
@group(0) @binding(TENSORS + MOMENTS + # + 2) var<storage, read_write> parameter#: array<Elem>;

fn of_tensor#(first: u32, end: u32, local: u32) -> f32 {
    if plan[APPLY] == 1.0 {
        for (var j = first + local; j < end; j += GROUP) {
            let i = p.dims[2u * #u].z + j;
            let theta = updated(#u, j, f32(grad#[j]), master[i]);
            master[i] = theta;
            parameter#[j] = Elem(theta);
        }
    }
    return 0.0;
}

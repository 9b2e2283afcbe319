
// A workgroup sums the terms of a block of tensor #.
@group(0) @binding(#) var<storage, read> terms#: array<f32>;
@group(0) @binding(TENSORS + #) var<storage, read_write> sum#: array<Out>;

fn of_tensor#(first: u32, end: u32, local: u32) -> f32 {
    let dim = p.dims[2u * #u];
    for (var j = first + local; j < end; j += GROUP) {
        var sum = 0.0;
        for (var row = 0u; row < dim.z; row++) {
            sum += terms#[row * dim.y + j];
        }
        sum#[j] = Out(sum);
    }
    return 0.0;
}

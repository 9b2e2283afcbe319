
// A workgroup copies a block of part # to the whole.
@group(0) @binding(#) var<storage, read> part#: array<Elem>;

fn of_tensor#(first: u32, end: u32, local: u32) -> f32 {
    for (var j = first + local; j < end; j += GROUP) {
        whole[place(#u, j)] = part#[j];
    }
    return 0.0;
}

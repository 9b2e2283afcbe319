
// A workgroup copies a block of part # from the whole.
@group(0) @binding(# + 1) var<storage, read_write> part#: array<Elem>;

fn of_tensor#(first: u32, end: u32, local: u32) -> f32 {
    for (var j = first + local; j < end; j += GROUP) {
        part#[j] = whole[place(#u, j)];
    }
    return 0.0;
}

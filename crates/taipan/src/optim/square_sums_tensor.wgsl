
// An invocation's share of the sum of squares of a block of tensor #.
@group(0) @binding(#) var<storage, read> x#: array<Elem>;

fn of_tensor#(first: u32, end: u32, local: u32) -> f32 {
    var sum = 0.0;
    for (var j = first + local; j < end; j += GROUP) {
        let here = f32(x#[j]);
        sum = fma(here, here, sum);
    }
    return sum;
}

// Where inputs are read for element i of the result. Unless FLAT, i is split along p.dims,
// innermost first: the size, and the stride of each of up to three inputs.
fn places(i: u32) -> vec3<u32> {
    var at = vec3(i);
    if FLAT == 0u {
        at = vec3(0u);
        var rest = i;
        for (var d = 0u; d < p.rank; d++) {
            let dim = p.dims[d];
            at += rest % dim.x * dim.yzw;
            rest /= dim.x;
        }
    }
    return at;
}


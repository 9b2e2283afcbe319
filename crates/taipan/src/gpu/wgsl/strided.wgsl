// y[to + Σ i·stride of y] = x[from + Σ i·stride of x] over all i within p.dims, which are from the
// innermost: (size, stride of x, stride of y). One element per invocation.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    var at = vec2(p.from_x, p.to_y);
    var rest = i;
    for (var d = 0u; d < p.rank; d++) {
        let dim = p.dims[d];
        at += rest % dim.x * dim.yz;
        rest /= dim.x;
    }
    y[at.y] = x[at.x];
}

// y = combine(a, b), one element per invocation. Unless FLAT, an index of y is split along p.dims,
// innermost first: (size, stride of a, stride of b).
@group(0) @binding(0) var<storage, read> a: array<Elem>;
@group(0) @binding(1) var<storage, read> b: array<Elem>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    var at = vec2(i);
    if FLAT == 0u {
        at = vec2(0u);
        var rest = i;
        for (var d = 0u; d < p.rank; d++) {
            let dim = p.dims[d];
            at += rest % dim.x * dim.yz;
            rest /= dim.x;
        }
    }
    y[i] = Elem(combine(f32(a[at.x]), f32(b[at.y])));
}

// x is [outer, len, inner]; a workgroup finds the index of the first greatest element along `len`
// for one element of y, [outer, inner].
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn line(i: u32, local: u32) {
    let start = i / p.inner * p.len * p.inner + i % p.inner;
    var best = vec2(0u); // order, index
    for (var j = local; j < p.len; j += WIDTH) {
        best = join(best, vec2(order(f32(x[start + j * p.inner])), j));
    }
    best = workgroup_join(best, local);
    if local == 0u {
        y[i] = best.y;
    }
}

// x is [outer, len, inner]; a workgroup finds the index of the first greatest element along `len`
// for one element of y, [outer, inner].
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(1) @binding(0) var<uniform> p: Params;

var<workgroup> best: array<vec2<u32>, WIDTH>; // order, index

fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

fn line(i: u32, local: u32) {
    let start = i / p.inner * p.len * p.inner + i % p.inner;
    var found = vec2(0u);
    for (var j = local; j < p.len; j += WIDTH) {
        found = better(found, vec2(order(f32(x[start + j * p.inner])), j));
    }
    best[local] = found;
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            best[local] = better(best[local], best[local + half]);
        }
    }
    if local == 0u {
        y[i] = best[0].y;
    }
}

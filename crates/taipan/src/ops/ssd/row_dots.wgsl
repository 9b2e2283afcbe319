// dots[outer, unit] = Σ u·v over ranks and width, for u and v of [outer, ranks, units, width]. A
// workgroup computes one of them.
@group(0) @binding(0) var<storage, read> u: array<U>;
@group(0) @binding(1) var<storage, read> v: array<V>;
@group(0) @binding(2) var<storage, read_write> dots: array<f32>;

fn line(i: u32, local: u32) {
    let first = (i / p.units * p.ranks * p.units + i % p.units) * p.width;
    var sum = 0.0;
    for (var j = local; j < p.ranks * p.width; j += WIDTH) {
        let at = first + j / p.width * p.units * p.width + j % p.width;
        sum = fma(f32(u[at]), f32(v[at]), sum);
    }
    let all = workgroup_join(sum, local);
    if local == 0u {
        dots[i] = all;
    }
}

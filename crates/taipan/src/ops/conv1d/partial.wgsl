// g = dy ⊙ φ'(pre) for p.steps results of a channel per invocation, and the partial sums of dweight
// and dbias over these.
@group(0) @binding(5) var<storage, read> dy: array<Elem>; // [b, l, d]
@group(0) @binding(6) var<storage, read_write> g: array<f32>; // [b, l, d]
// [b·blocks, d, k] and, from p.dbias on, [b·blocks, d]
@group(0) @binding(7) var<storage, read_write> partial: array<f32>;

fn element(i: u32) {
    let work = work_of(i);
    let b = work.b;
    let c = work.c;
    let seen_first = step(b, work.first, 0u);
    var seen = seen_first;
    var sum = 0.0;
    for (var t = work.first; t < work.end; t++) {
        let at = (b * p.l + t) * p.d + c;
        if t > work.first {
            seen = step(b, t, seen);
        }
        let here = gradient_at(sum_at(b, t, c, seen), f32(dy[at]));
        g[at] = here;
        sum += here;
    }
    partial[p.dbias + i] = sum;
    for (var j = 0u; j < p.k; j++) {
        sum = 0.0;
        seen = seen_first;
        for (var t = work.first; t < work.end; t++) {
            if t > work.first {
                seen = step(b, t, seen);
            }
            if j + seen >= p.k {
                sum = fma(g[(b * p.l + t) * p.d + c], input(b, t + j, c), sum);
            }
        }
        partial[i * p.k + j] = sum;
    }
}

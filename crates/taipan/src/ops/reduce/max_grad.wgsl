// x and dx are [outer, len, inner], y and dy [outer, inner]; a workgroup divides one element of dy
// equally among the elements along `len` that equal y.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> x: array<Elem>;
@group(0) @binding(2) var<storage, read> y: array<Elem>;
@group(0) @binding(3) var<storage, read_write> dx: array<Elem>;

fn line(i: u32, local: u32) {
    let start = i / p.inner * p.len * p.inner + i % p.inner;
    let top = order(f32(y[i]));
    var count = 0.0;
    for (var j = local; j < p.len; j += WIDTH) {
        count += select(0.0, 1.0, order(f32(x[start + j * p.inner])) == top);
    }
    let share = f32(dy[i]) / workgroup_join(count, local);
    for (var j = local; j < p.len; j += WIDTH) {
        let at = start + j * p.inner;
        if order(f32(x[at])) == top {
            dx[at] = Elem(share);
        } else {
            dx[at] = Elem(0.0);
        }
    }
}

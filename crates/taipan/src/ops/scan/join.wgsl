// db and dc of some rows: the sums of their parts, 64 at a time so that the error does not grow with
// their number. One element per invocation.
@group(0) @binding(0) var<storage, read> parts: array<f32>;       // [2, p.parts, p.part_rows, n]
@group(0) @binding(1) var<storage, read_write> db: array<Elem>;  // [b, l, n]
@group(0) @binding(2) var<storage, read_write> dc: array<Elem>;  // [b, l, n]
@group(1) @binding(0) var<uniform> p: Params;

fn element(i: u32) {
    let len = p.part_rows * p.n;
    var sum = 0.0;
    for (var first = 0u; first < p.parts; first += 64u) {
        var block = 0.0;
        for (var part = first; part < min(first + 64u, p.parts); part++) {
            block += parts[(i / len * p.parts + part) * len + i % len];
        }
        sum += block;
    }
    let to = p.first_row * p.n + i % len;
    if i < len {
        db[to] = Elem(sum);
    } else {
        dc[to] = Elem(sum);
    }
}

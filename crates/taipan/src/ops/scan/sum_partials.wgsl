// db and dc of some rows: the sums of their partial sums, in blocks of 64 so that the error does
// not grow with their number. One element per invocation. [2, p.partials, p.partial_rows, n]
@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read_write> db: array<Elem>;  // [b, l, n]
@group(0) @binding(2) var<storage, read_write> dc: array<Elem>;  // [b, l, n]

fn element(i: u32) {
    let len = p.partial_rows * p.n;
    var sum = 0.0;
    for (var first = 0u; first < p.partials; first += 64u) {
        var block = 0.0;
        for (var partial = first; partial < min(first + 64u, p.partials); partial++) {
            block += partials[(i / len * p.partials + partial) * len + i % len];
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

// x and y are [outer, len, inner]; a workgroup computes the sums along `len` for one of the
// [outer, inner] lines, from the last element if FROM_LAST: each invocation sums a block of the line,
// and then its elements, from the sum of the blocks before it.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

var<workgroup> sums: array<f32, WIDTH>;

fn line(i: u32, local: u32) {
    let start = i / p.inner * p.len * p.inner + i % p.inner;
    let size = (p.len + WIDTH - 1u) / WIDTH;
    let first = min(local * size, p.len);
    let end = min(first + size, p.len);
    var sum = 0.0;
    for (var j = first; j < end; j++) {
        sum += f32(x[start + place(j) * p.inner]);
    }
    sums[local] = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var before = 0u; before < local; before++) {
        sum += sums[before];
    }
    for (var j = first; j < end; j++) {
        let at = start + place(j) * p.inner;
        sum += f32(x[at]);
        y[at] = Elem(sum);
    }
}

fn place(j: u32) -> u32 {
    return select(j, p.len - 1u - j, FROM_LAST == 1u);
}

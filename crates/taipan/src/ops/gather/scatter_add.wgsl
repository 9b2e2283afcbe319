// y[outer, i, inner] = x[outer, i, inner] + Σ source[outer, j, inner] over all j whose index is i, in
// order: an invocation computes one element. x and y are [outer, n, inner], source and the index
// [outer, count, inner].
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read> source: array<Elem>;
@group(0) @binding(3) var<storage, read_write> y: array<Elem>;
@group(0) @binding(4) var<storage, read_write> index_errors: array<atomic<u32>>;

fn element(i: u32) {
    let own = i / p.inner % p.n;
    let first = i / p.inner / p.n * p.count * p.inner + i % p.inner;
    var sum = f32(x[i]);
    for (var j = 0u; j < p.count; j++) {
        let at = first + j * p.inner;
        if index[at] == own {
            sum += f32(source[at]);
        } else if own == 0u && index[at] >= p.n {
            report_index_error(index[at], p.n);
        }
    }
    y[i] = Elem(sum);
}

// y[outer, j, inner] = x[outer, index[outer, j, inner], inner]: an invocation copies one element. x is
// [outer, n, inner], y and the index [outer, count, inner]. Where an index is not below n, y is NaN.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;
@group(0) @binding(3) var<storage, read_write> index_errors: array<atomic<u32>>;

fn element(i: u32) {
    let at = index[i];
    if at >= p.n {
        y[i] = Elem(p.nan);
        report_index_error(at, p.n);
        return;
    }
    y[i] = x[(i / p.inner / p.count * p.n + at) * p.inner + i % p.inner];
}

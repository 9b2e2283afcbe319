// Softmax, or its logarithm if LOG. x and y are [rows, n]; a workgroup of WIDTH invocations computes a row.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

fn line(row: u32, local: u32) {
    let start = row * p.n;
    var all = NO_NUMBERS;
    for (var j = local; j < p.n; j += WIDTH) {
        all = join_number(all, f32(x[start + j]));
    }
    all = workgroup_join(all, local);
    // NaN if an element is +∞, or all are −∞.
    let undefined = bitcast<u32>(all.x) == M_INFINITY || all.y == 0.0;
    let scale = select(1.0 / all.y, p.nan, undefined);
    if LOG == 1u {
        let logarithm = select(m_ln(all.y), p.nan, undefined);
        for (var j = local; j < p.n; j += WIDTH) {
            y[start + j] = Elem((f32(x[start + j]) - all.x) - logarithm);
        }
        return;
    }
    for (var j = local; j < p.n; j += WIDTH) {
        y[start + j] = Elem(m_exp(f32(x[start + j]) - all.x) * scale);
    }
}

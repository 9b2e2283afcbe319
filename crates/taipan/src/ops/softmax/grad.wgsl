// dx = y ⊙ (dy − Σ dy·y), all [rows, n]; a workgroup of WIDTH invocations computes a row.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> y: array<Elem>;
@group(0) @binding(2) var<storage, read_write> dx: array<Elem>;

fn line(row: u32, local: u32) {
    let start = row * p.n;
    var dot = 0.0;
    for (var j = local; j < p.n; j += WIDTH) {
        dot += f32(dy[start + j]) * f32(y[start + j]);
    }
    dot = workgroup_join(dot, local);
    for (var j = local; j < p.n; j += WIDTH) {
        dx[start + j] = Elem(f32(y[start + j]) * (f32(dy[start + j]) - dot));
    }
}

// dx = y ⊙ (dy − Σ dy·y), or dx = dy − exp(y)·Σ dy if LOG; all [rows, n]. A workgroup of WIDTH invocations computes a row.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> y: array<Elem>;
@group(0) @binding(2) var<storage, read_write> dx: array<Elem>;

fn line(row: u32, local: u32) {
    let start = row * p.n;
    var dot = 0.0;
    for (var j = local; j < p.n; j += WIDTH) {
        dot += f32(dy[start + j]) * select(f32(y[start + j]), 1.0, LOG == 1u);
    }
    dot = workgroup_join(dot, local);
    for (var j = local; j < p.n; j += WIDTH) {
        let y = f32(y[start + j]);
        let dy = f32(dy[start + j]);
        if LOG == 1u {
            dx[start + j] = Elem(dy - m_exp(y) * dot);
        } else {
            dx[start + j] = Elem(y * (dy - dot));
        }
    }
}

// Σ dy ⊙ s·rstd over up to ROWS rows: an invocation computes an element of partial, [blocks, n],
// from a column of dy and s, [rows, n].
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> s: array<Stream>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read_write> partial: array<f32>;

fn element(i: u32) {
    let first = i / p.n * ROWS;
    let end = min(first + ROWS, p.rows);
    var sum = 0.0;
    for (var row = first; row < end; row++) {
        let at = row * p.n + i % p.n;
        sum = fma(f32(dy[at]), f32(s[at]) * rstd[row], sum);
    }
    partial[i] = sum;
}

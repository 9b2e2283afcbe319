// Σ dy ⊙ s·rstd over up to ROWS times the weight: an invocation computes an element of partial,
// [blocks, width], from a column of dy and s, [rows, width], with a norm for each n of the width. A
// gate, other, is a factor of either.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> s: array<Stream>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read> other: array<Stream>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;

fn element(i: u32) {
    let first = i / p.width * ROWS;
    let end = min(first + ROWS, p.rows);
    var sum = 0.0;
    for (var row = first; row < end; row++) {
        let at = row * p.width + i % p.width;
        var unit = f32(s[at]) * rstd[at / p.n];
        if WITH == GATE_FIRST || WITH == NORM_FIRST {
            unit *= value(f32(other[at]));
        }
        sum = fma(f32(dy[at]), unit, sum);
    }
    partial[i] = sum;
}

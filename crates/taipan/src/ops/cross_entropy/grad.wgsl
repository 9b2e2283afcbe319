// dlogits = (exp(x − max)/sum − onehot)·dy/count over the classes from p.first on, one element per
// invocation; 0 where the target is ignored.
@group(0) @binding(0) var<storage, read> logits: array<Elem>; // [rows, n]
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> rows: array<f32>; // [rows, 3]
@group(0) @binding(3) var<storage, read> count: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;
@group(0) @binding(5) var<storage, read_write> dlogits: array<Out>;

fn element(i: u32) {
    let row = i / p.n;
    let wanted = targets[row];
    if p.ignores == 1u && wanted == p.ignore {
        dlogits[i] = Out(0.0);
        return;
    }
    let y = m_exp(f32(logits[i]) - rows[row * 3u]) / rows[row * 3u + 1u];
    let onehot = select(0.0, 1.0, p.first + i % p.n == wanted);
    dlogits[i] = Out((y - onehot) * (dy[0] / count[0]));
}

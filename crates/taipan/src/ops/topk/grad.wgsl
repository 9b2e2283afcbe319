// dx[row, indices[row, j]] = dy[row, j]; dy and indices are [rows, k], dx is [rows, n] and 0
// elsewhere. One element of dy per invocation.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> dx: array<Elem>;

fn element(i: u32) {
    let j = indices[i];
    if j < p.n {
        dx[i / p.k * p.n + j] = dy[i];
    }
}

// With ŝ = s·rstd and dŝ = dy ⊙ weight: ds = rstd·(dŝ − ŝ·mean(dŝ ⊙ ŝ)), plus the upstream of s if
// p.add; also as dx if p.split. All are [rows, n] except weight, [n], and rstd, [rows]; a workgroup
// of WIDTH invocations computes a row.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> s: array<Stream>;
@group(0) @binding(2) var<storage, read> weight: array<Elem>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read> upstream: array<Stream>;
@group(0) @binding(5) var<storage, read_write> ds: array<Stream>;
@group(0) @binding(6) var<storage, read_write> dx: array<Elem>;

fn line(row: u32, local: u32) {
    let start = row * p.n;
    let scale = rstd[row];
    var dot = 0.0;
    for (var j = local; j < p.n; j += WIDTH) {
        let dunit = f32(dy[start + j]) * f32(weight[j]);
        dot = fma(dunit, f32(s[start + j]) * scale, dot);
    }
    let mean = workgroup_join(dot, local) / f32(p.n);
    for (var j = local; j < p.n; j += WIDTH) {
        let i = start + j;
        let dunit = f32(dy[i]) * f32(weight[j]);
        var here = scale * fma(-(f32(s[i]) * scale), mean, dunit);
        if p.add == 1u {
            here += f32(upstream[i]);
        }
        ds[i] = Stream(here);
        if p.split == 1u {
            dx[i] = Elem(here);
        }
    }
}

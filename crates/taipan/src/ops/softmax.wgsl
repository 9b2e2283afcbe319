// x and y are [rows, n]; a workgroup of WIDTH invocations computes a row.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(1) @binding(0) var<uniform> p: Params;

var<workgroup> partial: array<f32, WIDTH>;
var<workgroup> orders: array<u32, WIDTH>;

fn line(row: u32, local: u32) {
    let start = row * p.n;
    var top = vec2(0u, local); // order, index
    for (var j = local; j < p.n; j += WIDTH) {
        let here = order(f32(x[start + j]));
        if here > top.x {
            top = vec2(here, j);
        }
    }
    orders[local] = top.x;
    partial[local] = 0.0;
    if top.x > 0u {
        partial[local] = f32(x[start + top.y]);
    }
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half && orders[local + half] > orders[local] {
            orders[local] = orders[local + half];
            partial[local] = partial[local + half];
        }
    }
    workgroupBarrier();
    let greatest = partial[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var j = local; j < p.n; j += WIDTH) {
        sum += m_exp(f32(x[start + j]) - greatest);
    }
    partial[local] = sum;
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            partial[local] += partial[local + half];
        }
    }
    workgroupBarrier();
    let scale = 1.0 / partial[0];
    for (var j = local; j < p.n; j += WIDTH) {
        y[start + j] = Elem(m_exp(f32(x[start + j]) - greatest) * scale);
    }
}

// y = a·b: a workgroup computes a 16×16 tile, an invocation one element.
@group(0) @binding(0) var<storage, read> a: array<f32>;        // [m, k]
@group(0) @binding(1) var<storage, read> b: array<f32>;        // [k, n]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // [m, n]
@group(0) @binding(3) var<uniform> sizes: vec4<u32>;           // m, k, n

var<workgroup> a_tile: array<array<f32, 16>, 16>;
var<workgroup> b_tile: array<array<f32, 16>, 16>;

@compute @workgroup_size(16, 16)
fn main(@builtin(local_invocation_id) l: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>) {
    let m = sizes.x;
    let k = sizes.y;
    let n = sizes.z;
    var sum = 0.0;
    for (var k0 = 0u; k0 < k; k0 += 16u) {
        a_tile[l.y][l.x] = 0.0;
        if id.y < m && k0 + l.x < k {
            a_tile[l.y][l.x] = a[id.y * k + k0 + l.x];
        }
        b_tile[l.y][l.x] = 0.0;
        if k0 + l.y < k && id.x < n {
            b_tile[l.y][l.x] = b[(k0 + l.y) * n + id.x];
        }
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {
            sum += a_tile[l.y][i] * b_tile[i][l.x];
        }
        workgroupBarrier();
    }
    if id.y < m && id.x < n {
        y[id.y * n + id.x] = sum;
    }
}

// y = a·b: an invocation computes one element, from storage alone.
@group(0) @binding(0) var<storage, read> a: array<f32>;        // [m, k]
@group(0) @binding(1) var<storage, read> b: array<f32>;        // [k, n]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;  // [m, n]
@group(0) @binding(3) var<uniform> sizes: vec4<u32>;           // m, k, n

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let m = sizes.x;
    let k = sizes.y;
    let n = sizes.z;
    if id.y < m && id.x < n {
        var sum = 0.0;
        for (var i = 0u; i < k; i++) {
            sum += a[id.y * k + i] * b[i * n + id.x];
        }
        y[id.y * n + id.x] = sum;
    }
}

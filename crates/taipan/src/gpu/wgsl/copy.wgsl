// y = x, four words per invocation.
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;

fn element(i: u32) {
    y[i] = x[i];
}

// y = 2ˣ by the adapter's own instruction, one element per invocation.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn element(i: u32) {
    y[i] = exp2(x[i]);
}

// dz = dout·y·silu'(z), one element per invocation.
@group(0) @binding(0) var<storage, read> dout: array<Elem>;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read> z: array<Elem>;
@group(0) @binding(3) var<storage, read_write> dz: array<Elem>;

fn element(i: u32) {
    dz[i] = Elem(gradient(f32(z[i]), f32(dout[i]) * y[i]));
}

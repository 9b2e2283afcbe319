// y = factor·x + offset, one element per invocation.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    y[i] = Elem(fma(p.factor, f32(x[i]), p.offset));
}

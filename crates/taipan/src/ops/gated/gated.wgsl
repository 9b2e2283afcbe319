// y = x ⊙ φ(gate), one element per invocation.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> gate: array<Elem>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    y[i] = Elem(f32(x[i]) * value(f32(gate[i])));
}

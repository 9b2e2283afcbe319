// dx = dy ⊙ φ(gate) and dgate = dy ⊙ x ⊙ φ'(gate), one element of both per invocation.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> x: array<Elem>;
@group(0) @binding(2) var<storage, read> gate: array<Elem>;
@group(0) @binding(3) var<storage, read_write> dx: array<Elem>;
@group(0) @binding(4) var<storage, read_write> dgate: array<Elem>;

fn element(i: u32) {
    let up = f32(dy[i]);
    let here = f32(gate[i]);
    dx[i] = Elem(up * value(here));
    dgate[i] = Elem(gradient_at(here, up * f32(x[i])));
}

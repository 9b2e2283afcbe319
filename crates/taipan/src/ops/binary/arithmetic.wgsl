// y = a ∘ b, one element per invocation. Unless FLAT, an index of y is split along p.dims,
// innermost first: (size, stride of a, stride of b).
@group(0) @binding(0) var<storage, read> a: array<Elem>;
@group(0) @binding(1) var<storage, read> b: array<Elem>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;

const ADD = 0u;
const SUB = 1u;
const MUL = 2u;
const DIV = 3u;

fn combine(a: f32, b: f32) -> f32 {
    switch OP {
        case ADD, default: { return a + b; }
        case SUB: { return a - b; }
        case MUL: { return a * b; }
        case DIV: { return a / b; }
    }
}

fn element(i: u32) {
    var at = vec2(i);
    if FLAT == 0u {
        at = vec2(0u);
        var rest = i;
        for (var d = 0u; d < p.rank; d++) {
            let dim = p.dims[d];
            at += rest % dim.x * dim.yz;
            rest /= dim.x;
        }
    }
    y[i] = Elem(combine(f32(a[at.x]), f32(b[at.y])));
}

// y = 1 if the comparison of a with b is true, else 0; one element per invocation.
@group(0) @binding(0) var<storage, read> a: array<Elem>;
@group(0) @binding(1) var<storage, read> b: array<Elem>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

// Tested by its bits, because compilers may assume that there is none.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn compare(a: Elem, b: Elem) -> bool {
    if IS_FLOAT == 1u && (is_nan(f32(a)) || is_nan(f32(b))) {
        return OP == NE;
    }
    switch OP {
        case EQ, default: { return a == b; }
        case NE: { return a != b; }
        case LT: { return a < b; }
        case LE: { return a <= b; }
        case GT: { return a > b; }
        case GE: { return a >= b; }
    }
}

fn element(i: u32) {
    let at = places(i);
    y[i] = select(0u, 1u, compare(a[at.x], b[at.y]));
}

// y = a ∘ b, one element per invocation.
@group(0) @binding(0) var<storage, read> a: array<Elem>;
@group(0) @binding(1) var<storage, read> b: array<Elem>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;

// The bits of a NaN if one of both is, else 0: compilers may assume that there is none.
fn nan_of(a: f32, b: f32) -> u32 {
    const INFINITY = 0x7f800000u;
    let bits = vec2(bitcast<u32>(a), bitcast<u32>(b));
    let magnitudes = bits & vec2(0x7fffffffu);
    return select(select(0u, bits.y, magnitudes.y > INFINITY), bits.x, magnitudes.x > INFINITY);
}

fn keep_nan(a: f32, b: f32, result: f32) -> f32 {
    let nan = nan_of(a, b);
    return bitcast<f32>(select(nan, bitcast<u32>(result), nan == 0u));
}

fn combine(a: f32, b: f32) -> f32 {
    switch OP {
        case ADD, default: { return a + b; }
        case SUB: { return a - b; }
        case MUL: { return a * b; }
        case DIV: { return a / b; }
        case MAXIMUM: { return keep_nan(a, b, select(a, b, b > a)); }
        case MINIMUM: { return keep_nan(a, b, select(a, b, b < a)); }
        case SHARE: {
            return keep_nan(a, b, select(select(0.0, 0.5, a == b), 1.0, a > b));
        }
    }
}

fn element(i: u32) {
    let at = places(i);
    y[i] = Elem(combine(f32(a[at.x]), f32(b[at.y])));
}

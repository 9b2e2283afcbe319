// The left operand, [m, k], or [k, m] if TA, one element at a time.
@group(0) @binding(0) var<storage, read> a: array<Left>;

// Element `at` of a line of storage, of the entry that begins at `base`; 0 outside, where nothing
// is accessed.
fn left_element(base: u32, line: u32, at: u32) -> f32 {
    let sizes = select(vec2(p.m, p.k), vec2(p.k, p.m), TA == 1u);
    let inside = all(vec2(line, at) < sizes);
    let i = select(0u, base + line * sizes.y + at, inside);
    var x = f32(a[i]);
    if DERIVATIVE == LEFT {
        x = gradient(f32(aux[i]), x);
    }
    return select(0.0, x, inside);
}

fn left(base: u32, row: u32, i: u32) -> f32 {
    let place = select(vec2(row, i), vec2(i, row), TA == 1u);
    return left_element(base, place.x, place.y);
}

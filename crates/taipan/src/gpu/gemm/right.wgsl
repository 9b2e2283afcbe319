// The right operand, [k, n], or [n, k] if TB, one element at a time.
@group(0) @binding(1) var<storage, read> b: array<Right>;

// Element `at` of a line of storage, of the entry that begins at `base`; 0 outside, where nothing
// is accessed.
fn right_element(base: u32, line: u32, at: u32) -> f32 {
    let sizes = select(vec2(p.k, p.n), vec2(p.n, p.k), TB == 1u);
    let inside = all(vec2(line, at) < sizes);
    let i = select(0u, base + line * sizes.y + at, inside);
    var x = f32(b[i]);
    if DERIVATIVE == RIGHT {
        x = gradient(f32(aux[i]), x);
    }
    return select(0.0, x, inside);
}

fn right(base: u32, i: u32, column: u32) -> f32 {
    let place = select(vec2(i, column), vec2(column, i), TB == 1u);
    return right_element(base, place.x, place.y);
}

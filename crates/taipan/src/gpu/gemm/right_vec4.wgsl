// The right operand, [k, n], or [n, k] if TB, whose lines are multiples of four elements.
@group(0) @binding(1) var<storage, read> b: array<Right4>;

// Four elements of a line of storage, of the entry that begins at `base`.
fn right4_inside(base: u32, line: u32, at: u32) -> Staged {
    return stage_right(b[(base + line * select(p.n, p.k, TB == 1u) + at) / 4u]);
}

// The same; 0 outside, where nothing is accessed.
fn right4(base: u32, line: u32, at: u32) -> Staged {
    let inside = all(vec2(line, at) < select(vec2(p.k, p.n), vec2(p.n, p.k), TB == 1u));
    let place = select(vec3(0u), vec3(base, line, at), inside);
    return select(Staged(), right4_inside(place.x, place.y, place.z), inside);
}

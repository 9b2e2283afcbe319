// The left operand, [m, k], or [k, m] if TA, whose lines are multiples of four elements.
@group(0) @binding(0) var<storage, read> a: array<Left4>;

// Four elements of a line of storage, of the entry that begins at `base`.
fn left4_inside(base: u32, line: u32, at: u32) -> Staged {
    return stage_left(a[(base + line * select(p.k, p.m, TA == 1u) + at) / 4u]);
}

// The same; 0 outside, where nothing is accessed.
fn left4(base: u32, line: u32, at: u32) -> Staged {
    let inside = all(vec2(line, at) < select(vec2(p.m, p.k), vec2(p.k, p.m), TA == 1u));
    let place = select(vec3(0u), vec3(base, line, at), inside);
    return select(Staged(), left4_inside(place.x, place.y, place.z), inside);
}

// Four elements of a line of storage, read one at a time.
fn left4(base: u32, line: u32, at: u32) -> Staged {
    let x = vec4(
        left_element(base, line, at),
        left_element(base, line, at + 1u),
        left_element(base, line, at + 2u),
        left_element(base, line, at + 3u),
    );
    return stage(x);
}

fn right4(base: u32, line: u32, at: u32) -> Staged {
    let x = vec4(
        right_element(base, line, at),
        right_element(base, line, at + 1u),
        right_element(base, line, at + 2u),
        right_element(base, line, at + 3u),
    );
    return stage(x);
}

// Not used: comparisons are always needed.
fn left4_inside(base: u32, line: u32, at: u32) -> Staged {
    return Staged();
}

fn right4_inside(base: u32, line: u32, at: u32) -> Staged {
    return Staged();
}

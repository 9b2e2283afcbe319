
// Where element j of part t is in the whole; the second row of p.dims for a part has its first
// column and the number of its columns.
fn place(t: u32, j: u32) -> u32 {
    let columns = p.dims[2u * t + 1u].xy;
    return j / columns.y * p.run + columns.x + j % columns.y;
}

fn block(i: u32, unused: f32, local: u32) {}

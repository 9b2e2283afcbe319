// Tiles are staged in f32.
alias Staged = vec4<f32>;
alias Left4 = vec4<Left>;
alias Right4 = vec4<Right>;

fn stage(x: vec4<f32>) -> Staged {
    return x;
}

fn stage_left(x: Left4) -> Staged {
    return vec4<f32>(x);
}

fn stage_right(x: Right4) -> Staged {
    return vec4<f32>(x);
}

fn unstage(x: Staged) -> vec4<f32> {
    return x;
}

// Rows of a block that are stored at once through the memory of the tiles, and how they lie there.
const STORE_ROWS = 4u;

fn put_row(i: u32, row: vec4<f32>) {
    tile[i] = row;
}

fn row_element(i: u32, column: u32) -> f32 {
    return tile[i][column];
}

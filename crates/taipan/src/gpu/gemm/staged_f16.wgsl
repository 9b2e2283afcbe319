// Tiles are staged as the bits of four f16, in half the memory of f32: both operands are f16.
// Products and sums are in f32.
alias Staged = vec2<u32>;
alias Left4 = vec2<u32>;
alias Right4 = vec2<u32>;

fn stage(x: vec4<f32>) -> Staged {
    return vec2(pack2x16float(x.xy), pack2x16float(x.zw));
}

fn stage_left(x: Left4) -> Staged {
    return x;
}

fn stage_right(x: Right4) -> Staged {
    return x;
}

fn unstage(x: Staged) -> vec4<f32> {
    return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}

// Rows of a block that are stored at once through the memory of the tiles, and how they lie there.
const STORE_ROWS = 2u;

fn put_row(i: u32, row: vec4<f32>) {
    let bits = bitcast<vec4<u32>>(row);
    tile[2u * i] = bits.xy;
    tile[2u * i + 1u] = bits.zw;
}

fn row_element(i: u32, column: u32) -> f32 {
    return bitcast<f32>(tile[2u * i + column / 2u][column % 2u]);
}

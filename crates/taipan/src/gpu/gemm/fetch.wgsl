// Every invocation reads its rows of the left tile itself.
fn left_blocks(ty: u32, kk: u32, lane: u32) -> LeftBlocks {
    var blocks: LeftBlocks;
    blocks.first = left_block(ty, kk);
    if RM == 2u {
        blocks.second = left_block(ty + TY, kk);
    }
    return blocks;
}

fn group_main(i: u32, local: u32) {
    product(i, local, 0u);
}

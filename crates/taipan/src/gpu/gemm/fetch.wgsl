// Every invocation reads its rows of the left tile itself.
fn left_blocks(ty: u32, kk: u32, lane: u32) -> LeftBlocks {
    var blocks: LeftBlocks;
    blocks.first = left_block(ty, kk);
    if RM == 2u {
        blocks.second = left_block(ty + TY, kk);
    }
    return blocks;
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    product(flat(group, groups), local, 0u);
}

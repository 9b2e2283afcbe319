// The invocations of a subgroup need the same rows of the left tile: each loads some elements and
// broadcasts them.
fn left_blocks(ty: u32, kk: u32, lane: u32) -> LeftBlocks {
    let mine = unstage(tile[left_at(ty + lane / 4u % RM * TY, kk) + lane % 4u * A_S]);
    var blocks: LeftBlocks;
    blocks.first = left_matrix(mat4x4(
        subgroupBroadcast(mine, 0u),
        subgroupBroadcast(mine, 1u),
        subgroupBroadcast(mine, 2u),
        subgroupBroadcast(mine, 3u),
    ));
    if RM == 2u {
        blocks.second = left_matrix(mat4x4(
            subgroupBroadcast(mine, 4u),
            subgroupBroadcast(mine, 5u),
            subgroupBroadcast(mine, 6u),
            subgroupBroadcast(mine, 7u),
        ));
    }
    return blocks;
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    product(flat(group, groups), local, lane);
}

// The entry point of kernels over several tensors: a workgroup of GROUP invocations calls of_tensor
// for the i-th of all blocks, of up to BLOCK elements, and then block. p.dims has two rows for each
// tensor; the first begins with the index of its first block and its length.
@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat(group, groups);
    if i < p.blocks {
        var t = 0u;
        for (var next = 1u; next < TENSORS; next++) {
            t = select(t, next, p.dims[2u * next].x <= i);
        }
        let dim = p.dims[2u * t];
        let first = (i - dim.x) * BLOCK;
        block(i, of_tensor(t, first, min(first + BLOCK, dim.y), local), local);
    }
}

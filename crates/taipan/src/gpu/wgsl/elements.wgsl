// The entry point of element-wise kernels: calls element(i) for each i < p.len.
@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat(group, groups) * GROUP + local;
    if i < p.len {
        element(i);
    }
}

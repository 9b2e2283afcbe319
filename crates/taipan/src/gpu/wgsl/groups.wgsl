// The entry point of kernels with workgroups of WIDTH invocations: calls group_main(i, local) for
// workgroup i.
@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    group_main(flat(group, groups), local);
}

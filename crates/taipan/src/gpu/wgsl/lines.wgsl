// The entry point of kernels with a workgroup of WIDTH invocations per line: calls line(i, local)
// for each i < p.lines.
@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat(group, groups);
    if i < p.lines {
        line(i, local);
    }
}

// Prepended to every kernel.

// The default number of invocations of a workgroup.
const GROUP = 256u;

// The index of a workgroup: a dispatch may need two dimensions for all of them, and a launch may
// take several dispatches.
fn flat(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return p.first_group + group.y * groups.x + group.x;
}

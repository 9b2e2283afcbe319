// Before every kernel.

// Invocations of a workgroup, for kernels that do not choose.
const GROUP = 256u;

// The number of a workgroup: one dimension of a dispatch may be too short for them all.
fn flat(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

// Each invocation sets one word.
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat(group, groups) * GROUP + local;
    if i < p.len {
        out[i] = p.word;
    }
}

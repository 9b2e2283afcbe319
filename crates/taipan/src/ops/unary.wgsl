// y = f(x), one element per invocation.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(1) @binding(0) var<uniform> p: Params;

@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat(group, groups) * GROUP + local;
    if i >= p.len {
        return;
    }
    if FUNCTION == SCALE {
        y[i] = Elem(p.factor * f32(x[i]));
    } else {
        y[i] = Elem(value(f32(x[i])));
    }
}

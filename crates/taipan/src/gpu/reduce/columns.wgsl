// x is [outer, len, inner]; an invocation folds up to BLOCK elements that are `inner` apart into
// one element of y, [outer, blocks, inner].
@group(0) @binding(0) var<storage, read> x: array<In>;
@group(0) @binding(1) var<storage, read_write> y: array<Out>;

@compute @workgroup_size(GROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat(group, groups) * GROUP + local;
    if i >= p.outer * p.blocks * p.inner {
        return;
    }
    let column = i % p.inner;
    let outer = i / p.inner / p.blocks;
    let start = i / p.inner % p.blocks * BLOCK;
    let end = min(start + BLOCK, p.len);
    var acc = 0u;
    for (var j = start; j < end; j++) {
        acc = join(acc, enter(f32(x[(outer * p.len + j) * p.inner + column])));
    }
    y[i] = Out(leave(acc, p.divisor));
}

// A workgroup computes BN columns of one row of y: SHARE invocations share the sum of each, and each
// has four of them. Neighbouring invocations read neighbouring elements of b: columns, or terms of
// the sums if TB.
const WIDTH = 64u;
const ACROSS = WIDTH / SHARE;
const BN = ACROSS * 4u;
var<workgroup> part: array<vec4<f32>, WIDTH>;

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let columns = (p.n + BN - 1u) / BN;
    let i = flat(group, groups);
    let entry = i / columns / p.m;
    if entry >= p.entries {
        return;
    }
    let row = i / columns % p.m;
    let left_base = entry * p.m * p.k;
    let right_base = entry * p.k * p.n;
    let across = select(local % ACROSS, local / SHARE, TB == 1u);
    let share = select(local / ACROSS, local % SHARE, TB == 1u);
    let column = i % columns * BN + across;
    var sum = vec4<f32>();
    for (var k = share; k < p.k; k += SHARE) {
        sum += left(left_base, row, k) * vec4(
            right(right_base, k, column),
            right(right_base, k, column + ACROSS),
            right(right_base, k, column + 2u * ACROSS),
            right(right_base, k, column + 3u * ACROSS),
        );
    }
    part[share * ACROSS + across] = sum;
    workgroupBarrier();
    if local < BN && i % columns * BN + local < p.n {
        var total = 0.0;
        for (var s = 0u; s < SHARE; s++) {
            total += part[s * ACROSS + local % ACROSS][local / ACROSS];
        }
        put(entry, row, i % columns * BN + local, total);
    }
}

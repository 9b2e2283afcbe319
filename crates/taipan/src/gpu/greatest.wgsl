// The greatest pair (order, index) of a workgroup of WIDTH invocations: the greatest order and,
// among equal ones, the smallest index. To be called in uniform control flow.
var<workgroup> found: array<vec2<u32>, WIDTH>;

fn greater(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

fn greatest(mine: vec2<u32>, local: u32) -> vec2<u32> {
    // An earlier call may still be read.
    workgroupBarrier();
    found[local] = mine;
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            found[local] = greater(found[local], found[local + half]);
        }
    }
    workgroupBarrier();
    return found[0];
}

// What a workgroup of WIDTH invocations finds: the greatest pair (order, index), that is with the greatest
// order and, among those, with the smallest index. To be called in uniform flow.
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

// One value for all WIDTH invocations of a workgroup: the join of theirs, by halves, in an order
// that depends on WIDTH only. Before this stand the type Partial and the function join(). To be
// called in uniform control flow.
var<workgroup> partials: array<Partial, WIDTH>;

fn workgroup_join(mine: Partial, local: u32) -> Partial {
    partials[local] = mine;
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            partials[local] = join(partials[local], partials[local + half]);
        }
    }
    // Its barriers let the next call begin.
    return workgroupUniformLoad(&partials[0]);
}

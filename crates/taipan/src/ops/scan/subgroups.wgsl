// SHARE neighbouring invocations, which are a subgroup, leave their parts as one.
fn joined(x: f32) -> f32 {
    return subgroupAdd(x);
}

// Sums over a team of invocations, which is a subgroup: invocation i of the team sums every TEAM-th
// term, from i on. Terms are added by pairs of invocations, each of which keeps half of them: that
// takes one shuffle for each addition.

// The sums of terms 4·q + i % 4 over each four neighbouring invocations.
var<private> quarters: array<f32, STEPS / 2u>;

// Invocations with this bit keep b, others a: the sum of their own and their partner's.
fn halve(a: f32, b: f32, bit: u32, local: u32) -> f32 {
    let has = (local & bit) != 0u;
    return select(a, b, has) + subgroupShuffleXor(select(b, a, has), bit);
}

// This invocation's terms 4·q to 4·q + 3 of db, followed by dc.
fn put_terms(q: u32, x: vec4<f32>, local: u32) {
    quarters[q] = halve(halve(x.x, x.y, 1u, local), halve(x.z, x.w, 1u, local), 2u, local);
}

// Four numbers of this invocation.
var<private> quads: array<vec4<f32>, STEPS / 4u>;

fn keep(q: u32, x: vec4<f32>, local: u32) {
    quads[q] = x;
}

fn kept(q: u32, local: u32) -> vec4<f32> {
    return quads[q];
}

// Writes the sums over the team to partials[at..at + 2·STEPS].
fn write_sums(at: u32, local: u32) {
    var sums = quarters;
    for (var bit = 4u; bit < TEAM; bit *= 2u) {
        for (var i = 0u; i < 2u * STEPS / (2u * bit); i++) {
            sums[i] = halve(sums[2u * i], sums[2u * i + 1u], bit, local);
        }
    }
    for (var i = 0u; i < 2u * STEPS / TEAM; i++) {
        partials[at + i * TEAM + local % TEAM] = sums[i];
    }
}

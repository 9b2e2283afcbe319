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

var<private> quad: vec4<f32>;

// This invocation's term i of db, followed by dc. Those of db come in reverse order.
fn put_term(i: u32, x: f32, local: u32) {
    quad[i % 4u] = x;
    if i % 4u == select(0u, 3u, i >= STEPS) {
        let left = halve(quad.x, quad.y, 1u, local);
        let right = halve(quad.z, quad.w, 1u, local);
        quarters[i / 4u] = halve(left, right, 2u, local);
    }
}

// A number of this invocation for each step.
var<private> numbers: array<f32, STEPS>;

fn keep(i: u32, x: f32, local: u32) {
    numbers[i] = x;
}

fn kept(i: u32, local: u32) -> f32 {
    return numbers[i];
}

// Writes the sums over each team, one after the other, to partials[at..].
fn write_sums(at: u32, local: u32) {
    var sums = quarters;
    for (var bit = 4u; bit < TEAM; bit *= 2u) {
        for (var i = 0u; i < 2u * STEPS / (2u * bit); i++) {
            sums[i] = halve(sums[2u * i], sums[2u * i + 1u], bit, local);
        }
    }
    for (var i = 0u; i < 2u * STEPS / TEAM; i++) {
        partials[at + local / TEAM * 2u * STEPS + i * TEAM + local % TEAM] = sums[i];
    }
}

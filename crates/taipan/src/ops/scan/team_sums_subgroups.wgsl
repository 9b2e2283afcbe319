// Sums over a team of invocations, which is a subgroup.

// The sums of every TEAM-th term, from local % TEAM on.
var<private> sums: array<f32, 2u * STEPS / TEAM>;

// This invocation's terms 4·q to 4·q + 3 of db, followed by dc.
fn put_terms(q: u32, x: vec4<f32>, local: u32) {
    put_term(4u * q, x.x, local);
    put_term(4u * q + 1u, x.y, local);
    put_term(4u * q + 2u, x.z, local);
    put_term(4u * q + 3u, x.w, local);
}

fn put_term(i: u32, x: f32, local: u32) {
    let sum = subgroupAdd(x);
    sums[i / TEAM] = select(sums[i / TEAM], sum, local % TEAM == i % TEAM);
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
    for (var i = 0u; i < 2u * STEPS / TEAM; i++) {
        partials[at + i * TEAM + local % TEAM] = sums[i];
    }
}

// Sums over a team of 2·STEPS invocations, which have as many terms each: they pass through
// workgroup memory, and invocation i of the team sums term i of all.
const TEAM = 2u * STEPS;

// A plane for each four of the terms of all invocations. It has one element more, so that no two
// invocations meet in a bank of memory.
const PLANE = WIDTH + 1u;
var<workgroup> terms: array<f32, TEAM * PLANE>;

// This invocation's terms 4·q to 4·q + 3 of db, followed by dc.
fn put_terms(q: u32, x: vec4<f32>, local: u32) {
    let at = (q * PLANE + local) * 4u;
    terms[at] = x.x;
    terms[at + 1u] = x.y;
    terms[at + 2u] = x.z;
    terms[at + 3u] = x.w;
}

// Four numbers of this invocation, kept until it puts terms 4·q to 4·q + 3: in their place.
fn keep(q: u32, x: vec4<f32>, local: u32) {
    put_terms(q, x, local);
}

fn kept(q: u32, local: u32) -> vec4<f32> {
    let at = (q * PLANE + local) * 4u;
    return vec4(terms[at], terms[at + 1u], terms[at + 2u], terms[at + 3u]);
}

// Writes the sums over the team to partials[at..at + 2·STEPS].
fn write_sums(at: u32, local: u32) {
    workgroupBarrier();
    let lane = local % TEAM;
    let first = (lane / 4u * PLANE + local / TEAM * TEAM) * 4u + lane % 4u;
    var sum = 0.0;
    for (var i = 0u; i < TEAM; i++) {
        sum += terms[first + 4u * i];
    }
    partials[at + lane] = sum;
    workgroupBarrier(); // before the next state overwrites the terms
}

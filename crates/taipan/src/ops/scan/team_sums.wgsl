// Sums over a team of 2·STEPS invocations, which have as many terms each: they pass through
// workgroup memory, and invocation i of the team sums term i of all.
const TEAM = 2u * STEPS;

// A plane for each four of the terms of all invocations. It has one element more, so that no two
// invocations meet in a bank of memory.
const PLANE = WIDTH + 1u;
var<workgroup> terms: array<vec4<f32>, TEAM / 4u * PLANE>;

// This invocation's terms 4·q to 4·q + 3 of db, followed by dc.
fn put_terms(q: u32, x: vec4<f32>, local: u32) {
    terms[q * PLANE + local] = x;
}

// Writes the sums over the team to partials[at..at + 2·STEPS].
fn write_sums(at: u32, local: u32) {
    workgroupBarrier();
    let lane = local % TEAM;
    var sum = 0.0;
    for (var i = 0u; i < TEAM; i++) {
        sum += terms[lane / 4u * PLANE + local / TEAM * TEAM + i][lane % 4u];
    }
    partials[at + lane] = sum;
    workgroupBarrier(); // before the next state overwrites the terms
}

// Sums over a team of 2·STEPS invocations, which have as many terms each: they pass through
// workgroup memory, and invocation i of the team sums term i of all.
const TEAM = 2u * STEPS;

// A row for each term, with that of all invocations. It has one element more, so that no two
// invocations meet in a bank of memory.
const ROW = WIDTH + 1u;
var<workgroup> terms: array<f32, TEAM * ROW>;

// This invocation's term i of db, followed by dc.
fn put_term(i: u32, x: f32, local: u32) {
    terms[i * ROW + local] = x;
}

// A number of this invocation, kept until it puts term i: in its place.
fn keep(i: u32, x: f32, local: u32) {
    put_term(i, x, local);
}

fn kept(i: u32, local: u32) -> f32 {
    return terms[i * ROW + local];
}

// Writes the sums over each team, one after the other, to partials[at..].
fn write_sums(at: u32, local: u32) {
    workgroupBarrier();
    let lane = local % TEAM;
    let first = lane * WIDTH + local; // lane·ROW, and the first invocation of the team
    var sum = 0.0;
    for (var i = 0u; i < TEAM; i++) {
        sum += terms[first + i];
    }
    partials[at + local] = sum;
    workgroupBarrier(); // before the next state overwrites the terms
}

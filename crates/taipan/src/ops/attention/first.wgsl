// The first key that the step of each key sees, [b, s]: the last start at or before it. An
// invocation computes one.
@group(0) @binding(0) var<storage, read> seq_start: array<u32>;
@group(0) @binding(1) var<storage, read_write> first: array<u32>;

fn element(i: u32) {
    let sequence = i / p.keys * p.keys;
    var at = i;
    while at > sequence && seq_start[at] == 0u {
        at--;
    }
    first[i] = at - sequence;
}

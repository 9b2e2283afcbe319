// The sizes of the scan, what is given, and where things are in the buffer `packed`:
// rates A [n, d], d [d], delta_bias [d], starts [b, chunks] as bits, and rows [b, chunks, n, 2, STEPS],
// which are b and c in f32, with zeros beyond the last step. What is absent is 0. A chunk has STEPS steps.

// Bits of p.given.
const SKIP = 1u;
const DELTA_BIAS = 2u;
const GATE = 4u;
const STATE = 8u;
const STARTS = 16u;
const KEEP = 32u;
const PLAIN = 64u;

// The sum of step sizes of a piece in which a sequence starts: nothing is left of what was before.
const ENDLESS = 3e38;

fn given(bit: u32) -> bool {
    return (p.given & bit) != 0u;
}

fn rate_at(state: u32, channel: u32) -> u32 {
    return state * p.d + channel;
}

fn skip_at(channel: u32) -> u32 {
    return p.n * p.d + channel;
}

fn bias_at(channel: u32) -> u32 {
    return (p.n + 1u) * p.d + channel;
}

// Chunks are counted through all sequences.
fn starts_at(chunk: u32) -> u32 {
    return (p.n + 2u) * p.d + chunk;
}

// STEPS of b, then STEPS of c.
fn rows_at(chunk: u32, state: u32) -> u32 {
    return starts_at(p.b * p.chunks) + (chunk * p.n + state) * 2u * STEPS;
}

// The layout of the buffer `prepared`: rates A·log₂e [n, d], d [d], delta_bias [d], the bits of
// seq_start [b, chunks], and [b, chunks, n, 2, STEPS] with b and c in f32, padded with zeros. Absent
// tensors are 0. A chunk has STEPS steps.

// Bits of p.given.
const SKIP = 1u;
const DELTA_BIAS = 2u;
const GATE = 4u;
const INITIAL_STATE = 8u;
const SEQ_START = 16u;
const SAVE = 32u;
const PLAIN = 64u;

// Instead of the sum of step sizes, for a segment in which a sequence starts: nothing is carried
// across it.
const RESET = 3e38;

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

// Chunks are counted over all rows.
fn seq_starts_at(chunk: u32) -> u32 {
    return (p.n + 2u) * p.d + chunk;
}

// STEPS of b, then STEPS of c.
fn bc_rows_at(chunk: u32, state: u32) -> u32 {
    return seq_starts_at(p.b * p.chunks) + (chunk * p.n + state) * 2u * STEPS;
}

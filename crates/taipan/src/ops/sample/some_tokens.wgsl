// Prepended to sample.wgsl, for rows with the logits of some tokens, given by `tokens`.
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

fn token(at: u32, j: u32) -> u32 {
    return tokens[at];
}

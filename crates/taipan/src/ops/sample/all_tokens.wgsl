// Prepended to sample.wgsl, for rows with a logit for each token.
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn token(at: u32, j: u32) -> u32 {
    return j;
}

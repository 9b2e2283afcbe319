// Before sample.wgsl, for rows that hold a logit for each token.
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn token(at: u32, j: u32) -> u32 {
    return j;
}

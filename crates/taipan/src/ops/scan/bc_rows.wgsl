// The elements of b, followed by those of c, of a state in a chunk. All invocations read the same
// element, which GPUs do once for a wave.
struct BcRows {
    at: u32,
}

fn load_bc(at: u32, local: u32) -> BcRows {
    return BcRows(at);
}

fn bc_at(rows: ptr<function, BcRows>, i: u32) -> f32 {
    return prepared[(*rows).at + i];
}

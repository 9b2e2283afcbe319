// Each invocation sets one word.
@group(0) @binding(0) var<storage, read_write> out: array<u32>;

fn element(i: u32) {
    out[i] = p.word;
}

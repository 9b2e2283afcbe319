// sums[p.first + i] = Σ x² of the i-th block of BLOCK elements; the last of a tensor may be shorter.
// One workgroup per block.
@group(0) @binding(TENSORS) var<storage, read_write> sums: array<f32>;

fn block(i: u32, terms: f32, local: u32) {
    let sum = workgroup_join(terms, local);
    if local == 0u {
        sums[p.first + i] = sum;
    }
}

// Sums of rows, for several tensors: a workgroup computes a block of one. The first row of p.dims
// for a tensor is its first block, its length and the number of its terms.
fn block(i: u32, unused: f32, local: u32) {}

// The moments of all tensors of a launch, one after the other. The rows of p.dims for tensor t are:
// its first block, its length, and where its moments begin; and the bits of the learning rate and of
// the decay.
@group(0) @binding(0) var<storage, read> plan: array<f32>;
@group(0) @binding(TENSORS + 1) var<storage, read_write> m: array<f32>;

fn block(i: u32, unused: f32, local: u32) {}

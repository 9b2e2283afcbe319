// The master copies, beside the moments.
@group(0) @binding(TENSORS + MOMENTS + 1) var<storage, read_write> master: array<f32>;

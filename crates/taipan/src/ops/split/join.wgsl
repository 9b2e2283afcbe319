// Copies parts, [outer, columns], to columns of whole, [outer, run]. A workgroup copies a block of
// one part.
@group(0) @binding(TENSORS) var<storage, read_write> whole: array<Elem>;

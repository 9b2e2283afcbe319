// Copies columns of whole, [outer, run], to parts, [outer, columns]. A workgroup copies a block of
// one part.
@group(0) @binding(0) var<storage, read> whole: array<Elem>;

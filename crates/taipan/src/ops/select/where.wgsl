// y = a where mask is not 0, else b; one element per invocation.
@group(0) @binding(0) var<storage, read> mask: array<u32>;
@group(0) @binding(1) var<storage, read> a: array<Elem>;
@group(0) @binding(2) var<storage, read> b: array<Elem>;
@group(0) @binding(3) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    let at = places(i);
    if mask[at.x] != 0u {
        y[i] = a[at.y];
    } else {
        y[i] = b[at.z];
    }
}

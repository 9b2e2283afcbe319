// dx = dy·f', from what was saved, one element per invocation.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> saved: array<Elem>;
@group(0) @binding(2) var<storage, read_write> dx: array<Out>;

fn element(i: u32) {
    dx[i] = Out(gradient(f32(saved[i]), f32(dy[i])));
}

// Carries states from chunk to chunk, or with REVERSE their gradients, from the last chunk to the
// first: states, [b, h, chunks, p, n], hold what a chunk adds, and then what is before it (after
// it). An invocation computes an element of all chunks.
@group(0) @binding(0) var<storage, read> all: array<f32>;
@group(0) @binding(1) var<storage, read> initial: array<f32>;
@group(0) @binding(2) var<storage, read_write> states: array<f32>;
@group(0) @binding(3) var<storage, read_write> final_state: array<f32>;

fn element(i: u32) {
    let head = i / p.state % p.heads;
    let sequence = i / p.state / p.heads;
    var state = 0.0;
    if INITIAL == 1u {
        state = initial[i];
    }
    for (var step = 0u; step < p.chunks; step++) {
        let chunk = select(step, p.chunks - 1u - step, REVERSE == 1u);
        let at = ((sequence * p.heads + head) * p.chunks + chunk) * p.state + i % p.state;
        let added = states[at];
        states[at] = state;
        state = fma(all[(sequence * p.chunks + chunk) * p.heads + head], state, added);
    }
    final_state[i] = state;
}

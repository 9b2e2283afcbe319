// The decays of a chunk of a head, by step: an invocation computes one chunk. before and after,
// [b, l, h], are those from before the chunk to after a step, and from after a step to after the
// chunk; entering = after·scale; all, [b, chunks, h], is that of the chunk.
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> scale: array<f32>;
@group(0) @binding(2) var<storage, read> seq_start: array<u32>;
@group(0) @binding(3) var<storage, read_write> before: array<f32>;
@group(0) @binding(4) var<storage, read_write> after: array<f32>;
@group(0) @binding(5) var<storage, read_write> entering: array<f32>;
@group(0) @binding(6) var<storage, read_write> all: array<f32>;

fn starts(step: u32) -> bool {
    return SEQ_START == 1u && seq_start[step] != 0u;
}

fn element(i: u32) {
    let head = i % p.heads;
    let chunk = i / p.heads % p.chunks;
    let sequence = i / p.heads / p.chunks;
    let first = sequence * p.steps + chunk * p.chunk_steps;
    let end = min(first + p.chunk_steps, (sequence + 1u) * p.steps);
    var sum = 0.0;
    var alive = 1.0;
    for (var t = first; t < end; t++) {
        sum += a[t * p.heads + head];
        alive = select(alive, 0.0, starts(t));
        before[t * p.heads + head] = alive * m_exp(sum);
    }
    all[i] = alive * m_exp(sum);
    sum = 0.0;
    alive = 1.0;
    for (var back = end; back > first; back--) {
        let t = back - 1u;
        let at = t * p.heads + head;
        let decay = alive * m_exp(sum);
        after[at] = decay;
        entering[at] = select(decay, decay * scale[at], SCALE == 1u);
        sum += a[at];
        alive = select(alive, 0.0, starts(t));
    }
}

// The gradient of a, [b, l, h]: what passes through the decay of a step t of a chunk. That is, with
// Γ = weights ⊙ scores, Σ Γ[i, j] over rows i of steps ≥ t and rows j of steps < t; what passes from
// the state before the chunk to outputs of steps ≥ t, and from inputs of steps < t to the state
// after it; and from the one state to the other. An invocation computes an element.
@group(0) @binding(0) var<storage, read> weights: array<f32>;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> from_before: array<f32>;
@group(0) @binding(3) var<storage, read> to_after: array<f32>;
@group(0) @binding(4) var<storage, read> scale: array<f32>;
@group(0) @binding(5) var<storage, read> all: array<f32>;
@group(0) @binding(6) var<storage, read> state_dots: array<f32>;
@group(0) @binding(7) var<storage, read_write> da: array<f32>;

fn element(i: u32) {
    let head = i % p.heads;
    let step = i / p.heads % p.steps;
    let sequence = i / p.heads / p.steps;
    let chunk = step / p.chunk_steps;
    let first = chunk * p.chunk_steps;
    let end = min(first + p.chunk_steps, p.steps);
    let size = p.chunk_rows * p.chunk_rows;
    let matrix = ((sequence * p.chunks + chunk) * p.heads + head) * size;
    let of_group = ((sequence * p.chunks + chunk) * p.groups + head / p.group_heads) * size;
    let border = (step - first) * p.ranks;
    var sum = 0.0;
    for (var row = border; row < (end - first) * p.ranks; row++) {
        var of_row = 0.0;
        for (var column = 0u; column < border; column++) {
            let at = row * p.chunk_rows + column;
            of_row = fma(weights[matrix + at], scores[of_group + at], of_row);
        }
        sum += of_row;
    }
    for (var t = step; t < end; t++) {
        sum += from_before[(sequence * p.steps + t) * p.heads + head];
    }
    for (var t = first; t < step; t++) {
        let at = (sequence * p.steps + t) * p.heads + head;
        if SCALE == 1u {
            sum = fma(scale[at], to_after[at], sum);
        } else {
            sum += to_after[at];
        }
    }
    let whole = all[(sequence * p.chunks + chunk) * p.heads + head];
    da[i] = fma(whole, state_dots[(sequence * p.heads + head) * p.chunks + chunk], sum);
}

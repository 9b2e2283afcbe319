// dinput[j] = Σ scores[i, j]·dy[i] over the rows i of the step of row j, element by element; dy and
// dinput are [b, l, r, h, p], scores [b, chunks, g, rows, rows].
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read_write> dinput: array<f32>;

fn element(i: u32) {
    let channel = i % (p.channels * p.heads);
    let head = channel / p.channels;
    let row = i / p.channels / p.heads;
    let step = row / p.ranks % p.steps;
    let sequence = row / p.ranks / p.steps;
    let chunk = step / p.chunk_steps;
    let of_group = (sequence * p.chunks + chunk) * p.groups + head / p.group_heads;
    let first = (step - chunk * p.chunk_steps) * p.ranks;
    let column = first + row % p.ranks;
    var sum = 0.0;
    for (var rank = 0u; rank < p.ranks; rank++) {
        let score = scores[(of_group * p.chunk_rows + first + rank) * p.chunk_rows + column];
        let at = (row - row % p.ranks + rank) * p.channels * p.heads + channel;
        sum = fma(score, f32(dy[at]), sum);
    }
    dinput[i] = sum;
}

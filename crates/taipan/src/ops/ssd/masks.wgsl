// With lambda[i, j] the decay from after row j of a chunk to after row i, 0 for later steps:
// factors = lambda·scale, but own_scale where i and j are of the same step; and masked =
// scores ⊙ factors. BACKWARD: factors are stored, and masked = scores ⊙ lambda, without rows of the
// same step if there is an own_scale. Both are [b, chunks, h, rows, rows], scores
// [b, chunks, g, rows, rows]. An invocation computes a column. An exponent is the sum of its own
// steps: a difference of long sums would lose digits.
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> seq_start: array<u32>;
@group(0) @binding(2) var<storage, read> scores: array<f32>;
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read> own_scale: array<f32>;
@group(0) @binding(5) var<storage, read_write> masked: array<f32>;
@group(0) @binding(6) var<storage, read_write> factors: array<f32>;

fn element(i: u32) {
    let j = i % p.chunk_rows;
    let head = i / p.chunk_rows % p.heads;
    let chunk = i / p.chunk_rows / p.heads % p.chunks;
    let sequence = i / p.chunk_rows / p.heads / p.chunks;
    let first = sequence * p.steps + chunk * p.chunk_steps;
    let matrix = (sequence * p.chunks + chunk) * p.heads + head;
    let of_group = (sequence * p.chunks + chunk) * p.groups + head / p.group_heads;
    let size = p.chunk_rows * p.chunk_rows;
    let rows = min(p.chunk_rows, (p.steps - chunk * p.chunk_steps) * p.ranks);
    // Those of the steps of column j; columns behind the end are not read.
    let of_step = min(first + j / p.ranks, (sequence + 1u) * p.steps - 1u) * p.heads + head;
    var later = 1.0;
    if SCALE == 1u {
        later = scale[of_step];
    }
    var own = later;
    if OWN_SCALE == 1u {
        own = own_scale[of_step];
    }
    var sum = 0.0;
    var alive = 1.0;
    for (var row = 0u; row < rows; row++) {
        let step = row / p.ranks;
        if step > j / p.ranks && row % p.ranks == 0u {
            sum += a[(first + step) * p.heads + head];
            alive = select(alive, 0.0, SEQ_START == 1u && seq_start[first + step] != 0u);
        }
        let here = select(alive * m_exp(sum), 0.0, step < j / p.ranks);
        let at = row * p.chunk_rows + j;
        let is_own = step == j / p.ranks;
        let factor = here * select(later, own, is_own);
        var seen = factor;
        if BACKWARD == 1u {
            factors[matrix * size + at] = factor;
            seen = select(here, 0.0, OWN_SCALE == 1u && is_own);
        }
        masked[matrix * size + at] = scores[of_group * size + at] * seen;
    }
}

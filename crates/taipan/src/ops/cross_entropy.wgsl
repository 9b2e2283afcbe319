// A workgroup adds p.n logits of a row, those of the classes from p.first on, to
// rows[row] = (max, Σ exp(x − max), the target's logit), which p.first = 0 initialises.
@group(0) @binding(0) var<storage, read> logits: array<Elem>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> rows: array<f32>; // [rows, 3]
@group(0) @binding(3) var<storage, read_write> index_errors: array<atomic<u32>>;
@group(1) @binding(0) var<uniform> p: Params;

// Only −∞ is below it; if all logits are −∞, the sum is 0 relative to any number.
const LOWEST = -3.4028234e38;

var<workgroup> partial: array<vec2<f32>, WIDTH>; // max, sum

fn join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let greatest = max(a.x, b.x);
    return vec2(greatest, a.y * m_exp(a.x - greatest) + b.y * m_exp(b.x - greatest));
}

fn line(row: u32, local: u32) {
    let wanted = targets[row];
    if p.ignores == 1u && wanted == p.ignore {
        return;
    }
    let start = row * p.n;
    var mine = vec2(LOWEST, 0.0);
    for (var j = local; j < p.n; j += WIDTH) {
        let x = f32(logits[start + j]);
        if x > mine.x {
            mine = vec2(x, mine.y * m_exp(mine.x - x) + 1.0);
        } else {
            mine.y += m_exp(x - mine.x);
        }
    }
    partial[local] = mine;
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            partial[local] = join(partial[local], partial[local + half]);
        }
    }
    if local > 0u {
        return;
    }
    var all = partial[0];
    if p.first > 0u {
        all = join(vec2(rows[row * 3u], rows[row * 3u + 1u]), all);
    }
    // The loss is NaN for a logit of +∞ and for a class that does not exist.
    let infinite = bitcast<u32>(all.x) == M_INFINITY;
    let missing = wanted >= p.classes;
    if missing && p.first == 0u {
        report_index_error(wanted, p.classes);
    }
    rows[row * 3u] = all.x;
    rows[row * 3u + 1u] = select(all.y, p.nan, infinite || missing);
    let column = wanted - p.first; // beyond the columns if it is below p.first
    if column < p.n {
        rows[row * 3u + 2u] = f32(logits[start + column]);
    }
}

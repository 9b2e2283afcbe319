// A workgroup adds p.n logits of a row, those of the classes from p.first on, to
// rows[row] = (max, Σ exp(x − max), the target's logit), which p.first = 0 initialises.
@group(0) @binding(0) var<storage, read> logits: array<Elem>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> rows: array<f32>; // [rows, 3]
@group(0) @binding(3) var<storage, read_write> index_errors: array<atomic<u32>>;

fn line(row: u32, local: u32) {
    let wanted = targets[row];
    if p.ignores == 1u && wanted == p.ignore {
        return;
    }
    let start = row * p.n;
    var all = NO_NUMBERS;
    for (var j = local; j < p.n; j += WIDTH) {
        all = join_number(all, f32(logits[start + j]));
    }
    all = workgroup_join(all, local);
    if local > 0u {
        return;
    }
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

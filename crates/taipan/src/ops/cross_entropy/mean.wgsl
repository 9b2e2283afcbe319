// One workgroup computes the mean of ln sum + (max − logit) over the rows that are not ignored, and
// their number; 0 if there are none.
@group(0) @binding(0) var<storage, read> rows: array<f32>; // [rows, 3]
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> loss: array<f32>;
@group(0) @binding(3) var<storage, read_write> count: array<f32>;

const BLOCK = 16u * WIDTH;

fn line(i: u32, local: u32) {
    var all = Partial();
    // Sums in two levels, so that the error does not grow with the number of rows.
    for (var start = local; start < p.rows; start += BLOCK) {
        var block = 0.0;
        for (var row = start; row < min(start + BLOCK, p.rows); row += WIDTH) {
            if p.ignores == 0u || targets[row] != p.ignore {
                block += m_ln(rows[row * 3u + 1u]) + (rows[row * 3u] - rows[row * 3u + 2u]);
                all.count++;
            }
        }
        all.sum += block;
    }
    all = workgroup_join(all, local);
    if local == 0u {
        loss[0] = all.sum / f32(max(all.count, 1u));
        count[0] = f32(all.count);
    }
}

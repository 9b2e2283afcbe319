// A workgroup computes BN columns of ROWS rows of y: SHARE invocations share the sums of a column,
// and each has four columns. Neighbouring invocations read neighbouring elements of b, once for all
// rows: columns, or terms of the sums if TB.
const WIDTH = 64u;
const ACROSS = WIDTH / SHARE;
const BN = ACROSS * 4u;
var<workgroup> partial: array<vec4<f32>, ROWS * WIDTH>;

fn group_main(i: u32, local: u32) {
    let rows = (p.m + ROWS - 1u) / ROWS;
    let columns = (p.n + BN - 1u) / BN;
    let entry = i / columns / rows;
    if entry >= p.entries {
        return;
    }
    let row = i / columns % rows * ROWS;
    let column = i % columns * BN;
    let left_base = entry * p.m * p.k;
    let right_base = entry * p.k * p.n;
    let across = select(local % ACROSS, local / SHARE, TB == 1u);
    let share = select(local / ACROSS, local % SHARE, TB == 1u);
    var sums: array<vec4<f32>, ROWS>;
    for (var k = share; k < p.k; k += SHARE) {
        let b = vec4(
            right(right_base, k, column + across),
            right(right_base, k, column + across + ACROSS),
            right(right_base, k, column + across + 2u * ACROSS),
            right(right_base, k, column + across + 3u * ACROSS),
        );
        for (var r = 0u; r < ROWS; r++) {
            sums[r] += left(left_base, row + r, k) * b;
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        partial[r * WIDTH + share * ACROSS + across] = sums[r];
    }
    workgroupBarrier();
    for (var e = local; e < ROWS * BN; e += WIDTH) {
        let r = e / BN;
        let c = e % BN;
        if row + r < p.m && column + c < p.n {
            var total = 0.0;
            for (var s = 0u; s < SHARE; s++) {
                total += partial[r * WIDTH + s * ACROSS + c % ACROSS][c / ACROSS];
            }
            put(entry, row + r, column + c, total);
        }
    }
}

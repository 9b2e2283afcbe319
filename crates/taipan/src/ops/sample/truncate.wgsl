// x and y are [rows, n]; a workgroup copies a row, with −∞ for the weights exp((x − max x)·sharpness)
// below p.min_p, and for those below the largest t such that Σ w over w ≥ t is p.top_p·Σ w or more.
// A row whose maximum is NaN or infinite is copied.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

// The sum of weights that are at least `least`, given as bits: positive floats have their order.
fn mass(start: u32, most: f32, least: u32, local: u32) -> f32 {
    var sum = 0.0;
    for (var j = local; j < p.n; j += WIDTH) {
        let weight = m_exp((f32(x[start + j]) - most) * p.sharpness);
        sum += select(0.0, weight, bitcast<u32>(weight) >= least);
    }
    return workgroup_join(vec2(0.0, sum), local).y;
}

fn line(row: u32, local: u32) {
    let start = row * p.n;
    var top = NO_NUMBERS;
    for (var j = local; j < p.n; j += WIDTH) {
        top = join_number(top, f32(x[start + j]));
    }
    // A NaN shows in the sum only.
    let all = workgroup_join(top, local);
    let finite = max(bitcast<u32>(all.x) & ~M_SIGN, bitcast<u32>(all.y) & ~M_SIGN) < M_INFINITY;
    let most = all.x;
    var least = 0u;
    // The bits of t, from the highest down; no weight is above 1.
    let needed = p.top_p * mass(start, most, 0u, local);
    for (var bit = 0x20000000u; bit > 0u && p.top_p < 1.0; bit >>= 1u) {
        if mass(start, most, least | bit, local) >= needed {
            least |= bit;
        }
    }
    least = select(0u, max(least, bitcast<u32>(p.min_p)), finite);
    for (var j = local; j < p.n; j += WIDTH) {
        let here = f32(x[start + j]);
        let weight = m_exp((here - most) * p.sharpness);
        let excluded = bitcast<u32>(weight) < least;
        y[start + j] = Elem(bitcast<f32>(select(bitcast<u32>(here), M_NEG_INFINITY, excluded)));
    }
}

// The pairs of log_sum and η = do·o of each row, [b, hk, rows]. An invocation computes one.
@group(0) @binding(0) var<storage, read> o: array<Elem>;
@group(0) @binding(1) var<storage, read> dout: array<Elem>;
@group(0) @binding(2) var<storage, read> log_sums: array<f32>;
@group(0) @binding(3) var<storage, read_write> stats: array<vec2<f32>>;

fn element(i: u32) {
    let row = i % p.rows;
    let head = i / p.rows % p.key_heads;
    let step = i / p.rows / p.key_heads * p.steps + row / p.group;
    let at = ((step * p.key_heads + head) * p.group + row % p.group) * p.channels;
    var eta = 0.0;
    for (var c = at; c < at + p.channels; c++) {
        eta = fma(f32(o[c]), f32(dout[c]), eta);
    }
    stats[i] = vec2(log_sums[i], eta);
}

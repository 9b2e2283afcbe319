// dq = scale·dproduct·k with dproduct = weight ⊙ (do·vᵀ − η) and weight = exp(scale·q·kᵀ − log_sum);
// stats are the pairs of log_sum and η of each row. A workgroup computes 64 rows of 64 channels.
@group(0) @binding(6) var<storage, read_write> dq: array<Elem>;

fn near_at(which: u32, e: Entry, row: u32, c: u32) -> f32 {
    return query_at(which, e, row, c);
}

fn far_at(which: u32, e: Entry, key: u32, c: u32) -> f32 {
    return key_at(which, e, key, c);
}

fn line_at(which: u32, e: Entry, key: u32, c: u32) -> f32 {
    return key_at(0u, e, key, c);
}

// dproduct of four rows and a key
fn weigh(e: Entry, row: u32, key: u32, s: vec4<f32>, ds: vec4<f32>) -> vec4<f32> {
    var result = vec4(0.0);
    for (var r = 0u; r < 4u; r++) {
        if sees(e, row + r, key) {
            let of_row = stats[row_index(e, row + r)];
            result[r] = m_exp(p.scale * s[r] - of_row.x) * (ds[r] - of_row.y);
        }
    }
    return result;
}

fn line(i: u32, local: u32) {
    let e = entry_of(i, p.rows);
    let tx = local % 16u;
    let ty = local / 16u;
    let row = e.near + tx * 4u;
    let keys = keys_of(e);
    var out = mat4x4<f32>();
    for (var far = keys.x; far < keys.y; far += FAR) {
        let s = products(0u, e, far, local);
        let ds = products(1u, e, far, local);
        let key = far + ty * 2u;
        weights[ty * 32u + tx] = weigh(e, row, key, s[0], ds[0]);
        weights[ty * 32u + 16u + tx] = weigh(e, row, key + 1u, s[1], ds[1]);
        out = add_lines(0u, e, far, local, out);
    }
    for (var r = 0u; r < 4u; r++) {
        for (var c = 0u; c < 4u; c++) {
            let channel = e.column + ty * 4u + c;
            if row + r < p.rows && channel < p.channels {
                dq[query(e, row + r) + channel] = Elem(p.scale * out[r][c]);
            }
        }
    }
}

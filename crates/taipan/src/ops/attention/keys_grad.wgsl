// dk = scale·dproductᵀ·q and dv = weightᵀ·do, with weights and dproduct of rows_grad.wgsl. A workgroup
// computes 64 keys of 64 channels, with the rows of all query heads that read them.
@group(0) @binding(6) var<storage, read_write> dk: array<Elem>;
@group(0) @binding(7) var<storage, read_write> dv: array<Elem>;

fn near_at(which: u32, e: Entry, key: u32, c: u32) -> f32 {
    return key_at(which, e, key, c);
}

fn far_at(which: u32, e: Entry, row: u32, c: u32) -> f32 {
    return query_at(which, e, row, c);
}

fn line_at(which: u32, e: Entry, row: u32, c: u32) -> f32 {
    return query_at(which, e, row, c);
}

// The weights of a row and four keys
fn weigh(e: Entry, row: u32, key: u32, s: vec4<f32>) -> vec4<f32> {
    var result = vec4(0.0);
    for (var r = 0u; r < 4u; r++) {
        if sees(e, row, key + r) {
            result[r] = m_exp(p.scale * s[r] - stats[row_index(e, row)].x);
        }
    }
    return result;
}

fn eta(e: Entry, row: u32) -> f32 {
    if row >= p.rows {
        return 0.0;
    }
    return stats[row_index(e, row)].y;
}

fn line(i: u32, local: u32) {
    let e = entry_of(i, p.keys);
    let tx = local % 16u;
    let ty = local / 16u;
    let key = e.near + tx * 4u;
    // Earlier rows see none of the keys.
    let start = (max(e.near, p.position) - p.position) * p.group;
    var dk_sums = mat4x4<f32>();
    var dv_sums = mat4x4<f32>();
    for (var far = start; far < p.rows; far += FAR) {
        let s = products(0u, e, far, local);
        let ds = products(1u, e, far, local);
        let row = far + ty * 2u;
        let w0 = weigh(e, row, key, s[0]);
        let w1 = weigh(e, row + 1u, key, s[1]);
        weights[ty * 32u + tx] = w0;
        weights[ty * 32u + 16u + tx] = w1;
        dv_sums = add_lines(1u, e, far, local, dv_sums);
        workgroupBarrier();
        weights[ty * 32u + tx] = w0 * (ds[0] - eta(e, row));
        weights[ty * 32u + 16u + tx] = w1 * (ds[1] - eta(e, row + 1u));
        dk_sums = add_lines(0u, e, far, local, dk_sums);
    }
    for (var r = 0u; r < 4u; r++) {
        for (var c = 0u; c < 4u; c++) {
            let channel = e.column + ty * 4u + c;
            if key + r < p.keys && channel < p.channels {
                let at = key_row(e, key + r) + channel;
                dk[at] = Elem(p.scale * dk_sums[r][c]);
                dv[at] = Elem(dv_sums[r][c]);
            }
        }
    }
}

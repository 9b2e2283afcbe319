// o = softmax(scale·q·kᵀ)·v and log_sums, ln Σ exp(scale·q·k), with a running maximum: a workgroup
// computes 64 rows of 64 channels.
@group(0) @binding(0) var<storage, read> q: array<Elem>;
@group(0) @binding(1) var<storage, read> k: array<Elem>;
@group(0) @binding(2) var<storage, read> v: array<Elem>;
@group(0) @binding(3) var<storage, read> first: array<u32>;
@group(0) @binding(4) var<storage, read_write> o: array<Elem>;
@group(0) @binding(5) var<storage, read_write> log_sums: array<f32>;

// Less than any product.
const LOWEST = -3.4028234e38;

fn near_at(which: u32, e: Entry, row: u32, c: u32) -> f32 {
    if row >= p.rows || c >= p.channels {
        return 0.0;
    }
    return f32(q[query(e, row) + c]);
}

fn far_at(which: u32, e: Entry, key: u32, c: u32) -> f32 {
    if key >= p.used_keys || c >= p.channels {
        return 0.0;
    }
    return f32(k[key_row(e, key) + c]);
}

fn line_at(which: u32, e: Entry, key: u32, c: u32) -> f32 {
    if key >= p.used_keys || c >= p.channels {
        return 0.0;
    }
    return f32(v[key_row(e, key) + c]);
}

fn sees4(e: Entry, row: u32, key: u32) -> vec4<bool> {
    return vec4(
        sees(e, row, key),
        sees(e, row + 1u, key),
        sees(e, row + 2u, key),
        sees(e, row + 3u, key),
    );
}

fn line(i: u32, local: u32) {
    let e = entry_of(i, p.rows);
    let tx = local % 16u;
    let ty = local / 16u;
    let row = e.near + tx * 4u;
    let keys = keys_of(e);
    var top = vec4(LOWEST);
    // Of the invocation's own keys.
    var sum = vec4(0.0);
    var out = mat4x4<f32>();
    for (var far = keys.x; far < keys.y; far += FAR) {
        let raw = products(0u, e, far, local);
        let key = far + ty * 2u;
        let see0 = sees4(e, row, key);
        let see1 = sees4(e, row, key + 1u);
        let s0 = select(vec4(LOWEST), p.scale * raw[0], see0);
        let s1 = select(vec4(LOWEST), p.scale * raw[1], see1);
        weights[local] = max(s0, s1);
        workgroupBarrier();
        var next = top;
        for (var other = 0u; other < 16u; other++) {
            next = max(next, weights[other * 16u + tx]);
        }
        workgroupBarrier();
        let factor = exp4(top - next);
        let w0 = select(vec4(0.0), exp4(s0 - next), see0);
        let w1 = select(vec4(0.0), exp4(s1 - next), see1);
        top = next;
        sum = fma(sum, factor, w0 + w1);
        weights[ty * 32u + tx] = w0;
        weights[ty * 32u + 16u + tx] = w1;
        out = mat4x4(
            out[0] * factor.x,
            out[1] * factor.y,
            out[2] * factor.z,
            out[3] * factor.w,
        );
        out = add_lines(0u, e, far, local, out);
    }
    workgroupBarrier();
    weights[local] = sum;
    workgroupBarrier();
    var total = vec4(0.0);
    for (var other = 0u; other < 16u; other++) {
        total += weights[other * 16u + tx];
    }
    for (var r = 0u; r < 4u; r++) {
        if row + r >= p.rows {
            break;
        }
        if e.column == 0u && ty == 0u {
            log_sums[row_index(e, row + r)] = top[r] + m_ln(total[r]);
        }
        for (var c = 0u; c < 4u; c++) {
            let channel = e.column + ty * 4u + c;
            if channel < p.channels {
                o[query(e, row + r) + channel] = Elem(out[r][c] / total[r]);
            }
        }
    }
}

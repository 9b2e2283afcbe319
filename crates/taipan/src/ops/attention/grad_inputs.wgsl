// What the gradients of attention read.
@group(0) @binding(0) var<storage, read> q: array<Elem>;
@group(0) @binding(1) var<storage, read> k: array<Elem>;
@group(0) @binding(2) var<storage, read> v: array<Elem>;
@group(0) @binding(3) var<storage, read> dout: array<Elem>;
@group(0) @binding(4) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> first: array<u32>;

// 0: q, 1: dout
fn query_at(which: u32, e: Entry, row: u32, c: u32) -> f32 {
    if row >= p.rows || c >= p.channels {
        return 0.0;
    }
    let at = query(e, row) + c;
    if which == 0u {
        return f32(q[at]);
    }
    return f32(dout[at]);
}

// 0: k, 1: v
fn key_at(which: u32, e: Entry, key: u32, c: u32) -> f32 {
    if key >= p.used_keys || c >= p.channels {
        return 0.0;
    }
    let at = key_row(e, key) + c;
    if which == 0u {
        return f32(k[at]);
    }
    return f32(v[at]);
}

// What the kernels of attention share. A workgroup has 64 lanes of one side of the products of
// queries and keys, the near one, and takes 32 lanes of the other, the far one, at a time. The
// queries of a key head are rows: those of all steps and of all query heads that read it.
//
// A kernel defines near_at, far_at and line_at, which read the tensor `which`.
const NEAR = 64u;
const FAR = 32u;
const DEPTH = 16u;

// [DEPTH, NEAR], or lines of [DEPTH, 64]
var<workgroup> near_tile: array<vec4<f32>, DEPTH * NEAR / 4u>;
// [DEPTH, FAR]
var<workgroup> far_tile: array<vec2<f32>, DEPTH * FAR / 2u>;
// [FAR, NEAR]
var<workgroup> weights: array<vec4<f32>, FAR * NEAR / 4u>;

// What a workgroup computes: lanes from `near` on of a key head of a sequence, and 64 channels from
// `column` on of its results.
struct Entry {
    sequence: u32,
    head: u32,
    near: u32,
    column: u32,
}

fn entry_of(i: u32, lanes: u32) -> Entry {
    let columns = (p.channels + 63u) / 64u;
    let tiles = (lanes + NEAR - 1u) / NEAR;
    let matrix = i / columns / tiles;
    var e: Entry;
    e.column = i % columns * 64u;
    e.near = i / columns % tiles * NEAR;
    e.head = matrix % p.key_heads;
    e.sequence = matrix / p.key_heads;
    return e;
}

// Where a row begins in tensors of the shape of q, and in those of a number for each row.
fn query(e: Entry, row: u32) -> u32 {
    let step = e.sequence * p.steps + row / p.group;
    return ((step * p.key_heads + e.head) * p.group + row % p.group) * p.channels;
}

fn row_index(e: Entry, row: u32) -> u32 {
    return (e.sequence * p.key_heads + e.head) * p.rows + row;
}

// Where a key begins in tensors of the shape of k.
fn key_row(e: Entry, key: u32) -> u32 {
    return ((e.sequence * p.keys + key) * p.key_heads + e.head) * p.channels;
}

// Whether a row sees a key.
fn sees(e: Entry, row: u32, key: u32) -> bool {
    let last = p.position + row / p.group;
    var start = 0u;
    if PACKED == 1u && row < p.rows {
        start = first[e.sequence * p.keys + last];
    }
    return row < p.rows && key >= start && key <= last;
}

// The first key that one of the rows of a workgroup sees, and the one after the last.
fn keys_of(e: Entry) -> vec2<u32> {
    var start = 0u;
    if PACKED == 1u {
        start = first[e.sequence * p.keys + p.position + e.near / p.group];
    }
    return vec2(start, p.position + (min(e.near + NEAR, p.rows) - 1u) / p.group + 1u);
}

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4(m_exp(x.x), m_exp(x.y), m_exp(x.z), m_exp(x.w));
}

// near·farᵀ over the channels: of the invocation's four near lanes, for each of its two far lanes.
fn products(which: u32, e: Entry, far: u32, local: u32) -> mat2x4<f32> {
    let tx = local % 16u;
    let ty = local / 16u;
    var sums = mat2x4<f32>();
    for (var depth = 0u; depth < p.channels; depth += DEPTH) {
        workgroupBarrier();
        let c = depth + ty;
        let lane = e.near + tx * 4u;
        near_tile[local] = vec4(
            near_at(which, e, lane, c),
            near_at(which, e, lane + 1u, c),
            near_at(which, e, lane + 2u, c),
            near_at(which, e, lane + 3u, c),
        );
        let far_lane = far + tx * 2u;
        far_tile[local] =
            vec2(far_at(which, e, far_lane, c), far_at(which, e, far_lane + 1u, c));
        workgroupBarrier();
        for (var step = 0u; step < DEPTH; step++) {
            let a = near_tile[step * 16u + tx];
            let b = far_tile[step * 16u + ty];
            sums = mat2x4(fma(a, vec4(b.x), sums[0]), fma(a, vec4(b.y), sums[1]));
        }
    }
    return sums;
}

// sums + weightsᵀ·lines, over the far lanes: a row for each of the invocation's four near lanes, with
// four channels.
fn add_lines(which: u32, e: Entry, far: u32, local: u32, before: mat4x4<f32>) -> mat4x4<f32> {
    let tx = local % 16u;
    let ty = local / 16u;
    var sums = before;
    for (var depth = 0u; depth < FAR; depth += DEPTH) {
        workgroupBarrier();
        let lane = far + depth + ty;
        let c = e.column + tx * 4u;
        near_tile[local] = vec4(
            line_at(which, e, lane, c),
            line_at(which, e, lane, c + 1u),
            line_at(which, e, lane, c + 2u),
            line_at(which, e, lane, c + 3u),
        );
        workgroupBarrier();
        for (var step = 0u; step < DEPTH; step++) {
            let a = weights[(depth + step) * 16u + tx];
            let b = near_tile[step * 16u + ty];
            sums = mat4x4(
                fma(b, vec4(a.x), sums[0]),
                fma(b, vec4(a.y), sums[1]),
                fma(b, vec4(a.z), sums[2]),
                fma(b, vec4(a.w), sums[3]),
            );
        }
    }
    return sums;
}

// out = left·right for each chunk of each sequence and each unit, a head or a group. A workgroup
// computes 64×64 elements, an invocation 4×4 of them.
//
// An operand has a stride for every index, so that rows of a head or a group are read in place.
// FACTOR: elements of the left one are multiplied by a factor of a step and a head, those of their
// row, of their depth, or of their row and the head of their depth.
// FINISH: other is added to a sum; also d·x; or other is multiplied by it.
@group(0) @binding(0) var<storage, read> left: array<Left>;
@group(0) @binding(1) var<storage, read> right: array<Right>;
@group(0) @binding(2) var<storage, read> factor: array<f32>;
@group(0) @binding(3) var<storage, read> other: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<Elem>;
@group(0) @binding(5) var<storage, read> d: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<Out>;

const BY_ROW = 1u;
const BY_DEPTH = 2u;
const BY_ROW_AND_HEAD = 3u;

const ADD = 1u;
const ADD_SKIP = 2u;
const MULTIPLY = 3u;

const TILE = 64u;
const DEPTH = 16u;
const WIDTH = 256u;
var<workgroup> left_tile: array<vec4<f32>, DEPTH * TILE / 4u>;
var<workgroup> right_tile: array<vec4<f32>, DEPTH * TILE / 4u>;

// What a workgroup computes: a sequence, a chunk and its number of rows, a unit.
struct Entry {
    sequence: u32,
    chunk: u32,
    rows: u32,
    unit: u32,
}

fn factor_at(e: Entry, row: u32, head: u32) -> f32 {
    let step = (e.chunk * p.chunk_rows + row) / p.ranks;
    return factor[(e.sequence * p.steps + step) * p.heads + head];
}

fn left_at(e: Entry, row: u32, depth: u32, inside: vec2<u32>) -> f32 {
    if row >= inside.x || depth >= inside.y {
        return 0.0;
    }
    let at = e.sequence * p.left_sequence + e.chunk * p.left_chunk
        + e.unit / p.left_share * p.left_unit
        + row * p.left_lane + depth / p.inner * p.left_outer + depth % p.inner * p.left_inner;
    let value = f32(left[at]);
    if FACTOR == BY_ROW {
        return value * factor_at(e, row, e.unit);
    }
    if FACTOR == BY_DEPTH {
        return value * factor_at(e, depth, e.unit);
    }
    if FACTOR == BY_ROW_AND_HEAD {
        return value * factor_at(e, row, e.unit * p.group_heads + depth / p.inner);
    }
    return value;
}

fn right_at(e: Entry, column: u32, depth: u32, inside: vec2<u32>) -> f32 {
    if column >= inside.x || depth >= inside.y {
        return 0.0;
    }
    let at = e.sequence * p.right_sequence + e.chunk * p.right_chunk
        + e.unit / p.right_share * p.right_unit
        + column * p.right_lane + depth / p.inner * p.right_outer + depth % p.inner * p.right_inner;
    return f32(right[at]);
}

fn put(e: Entry, row: u32, column: u32, sum: f32) {
    let at = e.sequence * p.out_sequence + e.chunk * p.out_chunk + e.unit * p.out_unit
        + row * p.out_lane + column;
    var value = sum;
    if FINISH == ADD || FINISH == ADD_SKIP {
        value += other[at];
    }
    if FINISH == ADD_SKIP {
        value = fma(d[e.unit], f32(x[at]), value);
    }
    if FINISH == MULTIPLY {
        value *= other[at];
    }
    out[at] = Out(value);
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat(group, groups);
    let row_tiles = (p.m + TILE - 1u) / TILE;
    let column_tiles = (p.n + TILE - 1u) / TILE;
    let entry = i / column_tiles / row_tiles;
    if entry >= p.entries {
        return;
    }
    var e: Entry;
    e.unit = entry % p.units;
    e.chunk = entry / p.units % p.chunks;
    e.sequence = entry / p.units / p.chunks;
    e.rows = min(p.chunk_rows, p.steps * p.ranks - e.chunk * p.chunk_rows);
    // Sizes that are rows of the chunk end with it.
    let m = select(p.m, e.rows, ROWS_M == 1u);
    let n = select(p.n, e.rows, ROWS_N == 1u);
    let k = select(p.k, e.rows, ROWS_K == 1u);
    let first_row = i / column_tiles % row_tiles * TILE;
    let first_column = i % column_tiles * TILE;
    let tx = local % 16u;
    let ty = local / 16u;
    // Column q of the matrix is row q of the invocation's block.
    var sums = mat4x4<f32>();
    for (var depth = 0u; depth < p.k; depth += DEPTH) {
        workgroupBarrier();
        // An invocation loads four rows and four columns of one step of the depth.
        let kk = depth + local / 16u;
        let row = first_row + tx * 4u;
        let column = first_column + tx * 4u;
        let inside_left = vec2(m, k);
        let inside_right = vec2(n, k);
        left_tile[local] = vec4(
            left_at(e, row, kk, inside_left),
            left_at(e, row + 1u, kk, inside_left),
            left_at(e, row + 2u, kk, inside_left),
            left_at(e, row + 3u, kk, inside_left),
        );
        right_tile[local] = vec4(
            right_at(e, column, kk, inside_right),
            right_at(e, column + 1u, kk, inside_right),
            right_at(e, column + 2u, kk, inside_right),
            right_at(e, column + 3u, kk, inside_right),
        );
        workgroupBarrier();
        for (var step = 0u; step < DEPTH; step++) {
            let a = left_tile[step * 16u + ty];
            let b = right_tile[step * 16u + tx];
            sums = mat4x4(
                fma(b, vec4(a.x), sums[0]),
                fma(b, vec4(a.y), sums[1]),
                fma(b, vec4(a.z), sums[2]),
                fma(b, vec4(a.w), sums[3]),
            );
        }
    }
    for (var q = 0u; q < 4u; q++) {
        let row = first_row + ty * 4u + q;
        for (var c = 0u; c < 4u; c++) {
            let column = first_column + tx * 4u + c;
            if row < m && column < n {
                put(e, row, column, sums[q][c]);
            }
        }
    }
}

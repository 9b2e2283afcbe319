// A workgroup computes a BM×BN block of y, an invocation RM×RN blocks of 4×4, each in a matrix
// whose column q is row q of the block. Tiles of both operands are staged in workgroup memory in
// the order of storage, as vec4s of contiguous elements; a transpose happens in registers.
const WIDTH = TX * TY;
const BM = TY * RM * 4u;
const BN = TX * RN * 4u;

// The loaded tiles: _H lines of _W vec4s, _S apart. Where neighbouring invocations read different
// lines, these are padded by one vec4 to avoid bank conflicts.
const A_H = BM * (1u - TA) + BK * TA;
const A_W = (BK * (1u - TA) + BM * TA) / 4u;
const A_S = A_W + 1u - TA;
const B_H = BK * (1u - TB) + BN * TB;
const B_W = (BN * (1u - TB) + BK * TB) / 4u;
const B_S = B_W + TB;
const B_AT = A_H * A_S;
// Lines that all invocations load together.
const A_LINES = WIDTH / A_W;
const B_LINES = WIDTH / B_W;
var<workgroup> tile: array<Staged, max(B_AT + B_H * B_S, WIDTH * 4u)>;

// Load a tile of each operand, from `row`, `column` and `k` on; without comparisons if both are
// `inside` the matrices. An invocation loads as many vec4s as any other: loops are unrolled.
fn load(base: vec2<u32>, row: u32, column: u32, k: u32, local: u32, inside: bool) {
    let a_at = select(vec2(row, k), vec2(k, row), TA == 1u) + vec2(local / A_W, local % A_W * 4u);
    let b_at =
        select(vec2(k, column), vec2(column, k), TB == 1u) + vec2(local / B_W, local % B_W * 4u);
    let a_to = local / A_W * A_S + local % A_W;
    let b_to = B_AT + local / B_W * B_S + local % B_W;
    if inside {
        for (var i = 0u; i < A_H / A_LINES; i++) {
            tile[a_to + i * A_LINES * A_S] = left4_inside(base.x, a_at.x + i * A_LINES, a_at.y);
        }
        for (var i = 0u; i < B_H / B_LINES; i++) {
            tile[b_to + i * B_LINES * B_S] = right4_inside(base.y, b_at.x + i * B_LINES, b_at.y);
        }
    } else {
        for (var i = 0u; i < A_H / A_LINES; i++) {
            tile[a_to + i * A_LINES * A_S] = left4(base.x, a_at.x + i * A_LINES, a_at.y);
        }
        for (var i = 0u; i < B_H / B_LINES; i++) {
            tile[b_to + i * B_LINES * B_S] = right4(base.y, b_at.x + i * B_LINES, b_at.y);
        }
    }
}

// Four vec4s of the tiles, `next` apart.
fn lines_at(at: u32, next: u32) -> mat4x4<f32> {
    return mat4x4(
        unstage(tile[at]),
        unstage(tile[at + next]),
        unstage(tile[at + 2u * next]),
        unstage(tile[at + 3u * next]),
    );
}

// Where the four vec4s of a block of the left tile begin: rows 4·block… by columns kk…. They are
// A_S apart.
fn left_at(block: u32, kk: u32) -> u32 {
    return select(block * 4u * A_S + kk / 4u, kk * A_S + block, TA == 1u);
}

fn left_matrix(lines: mat4x4<f32>) -> mat4x4<f32> {
    if TA == 1u {
        return transpose(lines);
    }
    return lines;
}

fn left_block(block: u32, kk: u32) -> mat4x4<f32> {
    let at = left_at(block, kk);
    return left_matrix(lines_at(at, A_S));
}

// The blocks of an invocation's rows; the second only if RM is 2.
struct LeftBlocks {
    first: mat4x4<f32>,
    second: mat4x4<f32>,
}

// Rows kk… of the right tile by the columns of block j of invocation tx. These are neighbours; but
// if TB, they are TX apart, so that neighbouring invocations read neighbouring lines.
fn right_block(tx: u32, j: u32, kk: u32) -> mat4x4<f32> {
    if TB == 1u {
        return transpose(lines_at(B_AT + (tx + j * 4u * TX) * B_S + kk / 4u, TX * B_S));
    }
    return lines_at(B_AT + kk * B_S + tx + j * TX, B_S);
}

// c + b·a, as fma alone: of `c + b * a` some compilers make a multiplication and an addition more
// for every four.
fn add_product(c: mat4x4<f32>, b: mat4x4<f32>, a: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4(
        add_column(c[0], b, a[0]),
        add_column(c[1], b, a[1]),
        add_column(c[2], b, a[2]),
        add_column(c[3], b, a[3]),
    );
}

fn add_column(c: vec4<f32>, b: mat4x4<f32>, a: vec4<f32>) -> vec4<f32> {
    let sum = fma(b[1], vec4(a.y), fma(b[0], vec4(a.x), c));
    return fma(b[3], vec4(a.w), fma(b[2], vec4(a.z), sum));
}

// Store one block of every invocation through workgroup memory, so that stores are coalesced.
fn store(block: mat4x4<f32>, slice: u32, row: u32, column: u32, local: u32) {
    for (var first = 0u; first < 4u; first += STORE_ROWS) {
        workgroupBarrier();
        let at = local / TX * STORE_ROWS * TX + local % TX;
        for (var q = 0u; q < STORE_ROWS; q++) {
            put_row(at + q * TX, block[first + q]);
        }
        workgroupBarrier();
        for (var e = local; e < WIDTH * 4u * STORE_ROWS; e += WIDTH) {
            let line = e / (TX * 4u);
            let r = line / STORE_ROWS * 4u + first + line % STORE_ROWS;
            let c = e % (TX * 4u);
            if row + r < p.m && column + c < p.n {
                let place = select(vec2(c / 4u, c % 4u), vec2(c % TX, c / TX), TB == 1u);
                put(slice, row + r, column + c, row_element(line * TX + place.x, place.y));
            }
        }
    }
}

// The work of workgroup i. `lane` is the index of the invocation in its subgroup, if subgroups are
// used.
fn product(i: u32, local: u32, lane: u32) {
    let rows = (p.m + BM - 1u) / BM;
    let columns = (p.n + BN - 1u) / BN;
    let slice = i / columns / rows;
    if slice >= p.entries * p.splits {
        return;
    }
    let row = i / columns % rows * BM;
    let column = i % columns * BN;
    // With WHOLE these are constants, which saves a tenth of the time on llvmpipe.
    let entry = select(slice / p.splits, 0u, WHOLE == 1u);
    let start = select(slice % p.splits * p.depth, 0u, WHOLE == 1u);
    let end = select(min(p.k, start + p.depth), p.k, WHOLE == 1u);
    let base = entry * p.k * vec2(p.m, p.n);
    let inside = VEC4 == 1u && row + BM <= p.m && column + BN <= p.n;
    let tx = local % TX;
    let ty = local / TX;
    var c00 = mat4x4<f32>();
    var c01 = mat4x4<f32>();
    var c10 = mat4x4<f32>();
    var c11 = mat4x4<f32>();
    var sums = vec4<f32>();
    for (var k = start; k < end; k += BK) {
        workgroupBarrier();
        load(base, row, column, k, local, inside && k + BK <= p.k);
        workgroupBarrier();
        for (var kk = 0u; kk < min(BK, end - k); kk += 4u) {
            let a = left_blocks(ty, kk, lane);
            let b0 = right_block(tx, 0u, kk);
            c00 = add_product(c00, b0, a.first);
            if RM == 2u {
                c10 = add_product(c10, b0, a.second);
            }
            if RN == 2u {
                let b1 = right_block(tx, 1u, kk);
                c01 = add_product(c01, b1, a.first);
                if RM == 2u {
                    c11 = add_product(c11, b1, a.second);
                }
            }
        }
        // The sums over k of an operand whose lines are steps of k: of four rows or columns each.
        let of_left = SUMS == LEFT && column == 0u && local < A_W;
        let of_right = SUMS == RIGHT && row == 0u && local < B_W;
        if of_left || of_right {
            let at = select(0u, B_AT, SUMS == RIGHT) + local;
            let next = select(A_S, B_S, SUMS == RIGHT);
            var here = vec4<f32>();
            for (var line = 0u; line < BK; line++) {
                here += unstage(tile[at + line * next]);
            }
            sums += here;
        }
    }
    store(c00, slice, row, column, local);
    if RN == 2u {
        store(c01, slice, row, column + TX * 4u, local);
    }
    if RM == 2u {
        store(c10, slice, row + TY * 4u, column, local);
    }
    if RM == 2u && RN == 2u {
        store(c11, slice, row + TY * 4u, column + TX * 4u, local);
    }
    if SUMS == LEFT && column == 0u && local < A_W {
        for (var q = 0u; q < 4u; q++) {
            if row + local * 4u + q < p.m {
                put_second(slice * p.m + row + local * 4u + q, sums[q]);
            }
        }
    }
    if SUMS == RIGHT && row == 0u && local < B_W {
        for (var q = 0u; q < 4u; q++) {
            if column + local * 4u + q < p.n {
                put_second(slice * p.n + column + local * 4u + q, sums[q]);
            }
        }
    }
}

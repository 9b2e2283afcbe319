// y: sums of x, [b, len, inner], along len, modulo 1, from initial, [b, inner]; with REVERSE sums from
// the last step on, as they are, and the sum of all as last. A sequence that starts has nothing from
// before it. A workgroup computes LINES of the [b, inner] lines, an invocation one of their BLOCKS:
// first its sum, and then its elements, from the sum of the blocks before it.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> initial: array<Elem>;
@group(0) @binding(2) var<storage, read> seq_start: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<Elem>;
@group(0) @binding(4) var<storage, read_write> last: array<Elem>;

var<workgroup> sums: array<f32, WIDTH>;
// Whether a sequence starts in a block.
var<workgroup> cuts: array<u32, WIDTH>;

// Without whole turns.
fn reduced(turns: f32) -> f32 {
    return select(turns - round(turns), turns, REVERSE == 1u);
}

fn starts(row: u32, t: u32) -> bool {
    return SEQ_START == 1u && seq_start[row * p.len + t] != 0u;
}

fn group_main(i: u32, local: u32) {
    let line = i * LINES + local % LINES;
    let is_line = line < p.lines;
    let row = line / p.inner;
    let column = line % p.inner;
    let size = (p.len + BLOCKS - 1u) / BLOCKS;
    let block = local / LINES;
    let first = min(block * size, p.len);
    let end = select(first, min(first + size, p.len), is_line);
    var sum = 0.0;
    var cut = 0u;
    for (var j = first; j < end; j++) {
        let t = select(j, p.len - 1u - j, REVERSE == 1u);
        let here = starts(row, t);
        sum = select(sum, 0.0, here && REVERSE == 0u);
        sum = reduced(sum + f32(x[(row * p.len + t) * p.inner + column]));
        sum = select(sum, 0.0, here && REVERSE == 1u);
        cut = select(cut, 1u, here);
    }
    sums[local] = sum;
    cuts[local] = cut;
    workgroupBarrier();
    sum = 0.0;
    if is_line && INITIAL == 1u && REVERSE == 0u {
        sum = f32(initial[line]);
    }
    for (var before = local % LINES; before < local; before += LINES) {
        sum = reduced(select(sum, 0.0, cuts[before] == 1u) + sums[before]);
    }
    for (var j = first; j < end; j++) {
        let t = select(j, p.len - 1u - j, REVERSE == 1u);
        let here = starts(row, t);
        let at = (row * p.len + t) * p.inner + column;
        sum = select(sum, 0.0, here && REVERSE == 0u);
        sum = reduced(sum + f32(x[at]));
        y[at] = Elem(sum);
        sum = select(sum, 0.0, here && REVERSE == 1u);
    }
    if is_line && INITIAL == 1u && REVERSE == 1u && block == BLOCKS - 1u {
        last[line] = Elem(sum);
    }
}

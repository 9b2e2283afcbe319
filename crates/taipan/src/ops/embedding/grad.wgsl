// dtable[id] = Σ dy[i] over the positions i of id: the invocation of the first position sums one
// element, in the order of the positions. Of dtable, p.rows rows from p.first on are bound, and
// rows without a position are already zero.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> links: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> dtable: array<Elem>;

fn element(i: u32) {
    let first = i / p.d;
    let column = i % p.d;
    let row = ids[first] - p.first; // beyond the rows if it is below p.first
    if links[first].y == 0u || row >= p.rows {
        return;
    }
    let m = p.len / p.d;
    var sum = 0.0;
    for (var position = first; position < m; position = max(position + 1u, links[position].x)) {
        sum += f32(dy[position * p.d + column]);
    }
    dtable[row * p.d + column] = Elem(sum);
}

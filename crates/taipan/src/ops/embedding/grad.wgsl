// dtable[outer, id] = Σ dy[outer, i] over the positions i of id: the invocation of the first position
// sums one element, in the order of the positions. Of the rows of dtable, [outer, v], p.rows from
// p.first on are bound, and rows without a position are already zero.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> links: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> dtable: array<Elem>;

fn element(i: u32) {
    let outer = i / p.d / p.count;
    let first = i / p.d % p.count;
    let column = i % p.d;
    let id = ids[first];
    let row = outer * p.v + id - p.first; // beyond the rows if it is below p.first
    if links[first].y == 0u || id >= p.v || row >= p.rows {
        return;
    }
    let start = outer * p.count;
    var sum = 0.0;
    for (var at = first; at < p.count; at = max(at + 1u, links[at].x)) {
        sum += f32(dy[(start + at) * p.d + column]);
    }
    dtable[row * p.d + column] = Elem(sum);
}

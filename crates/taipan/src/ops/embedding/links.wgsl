// Links each position to the next one with the same id: links[i] is that position, or p.len if
// there is none, and 1 if position i is the first of its id. One position per invocation.
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> links: array<vec2<u32>>;

fn element(i: u32) {
    let id = ids[i];
    var first = 1u;
    for (var back = 1u; back <= i; back++) {
        if ids[i - back] == id {
            first = 0u;
            break;
        }
    }
    var next = i + 1u;
    for (; next < p.len; next++) {
        if ids[next] == id {
            break;
        }
    }
    links[i] = vec2(next, first);
}

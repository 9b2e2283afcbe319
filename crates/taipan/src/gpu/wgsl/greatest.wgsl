// For workgroup.wgsl: the greatest pair of an order and an index. Of equal orders, that with the
// smallest index.
alias Partial = vec2<u32>;

fn join(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

// y = factor·x, or 0 where the element's random bits are below the threshold. One element per
// invocation; a pair of elements has the two words of a counter.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    let pair = threefry(vec2(p.key0, p.key1), vec2(p.first_pair + i / 2u, 0u));
    let bits = select(pair.x, pair.y, i % 2u == 1u);
    if bits >= p.threshold {
        y[i] = Elem(p.factor * f32(x[i]));
    } else {
        y[i] = Elem(0.0);
    }
}

// y = factor·x, or 0 where the element's random bits are below the threshold. One element per
// invocation. Of every 2·HALF elements, the first HALF have the first words of as many counters, and
// the others their second words.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    let counter = i / (2u * HALF) * HALF + i % HALF;
    let words = threefry_13(vec2(p.key0, p.key1), vec2(p.first_counter + counter, 0u));
    let bits = select(words.x, words.y, i / HALF % 2u == 1u);
    if bits >= p.threshold {
        y[i] = Elem(p.factor * f32(x[i]));
    } else {
        y[i] = Elem(0.0);
    }
}

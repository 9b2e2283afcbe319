// y: channels j and j + d/2 of x, [b, l, h, d], turned by the angle of the pair at the position of
// the step. turns, [d/2], are turns per position times 2⁶⁴, in two words. An invocation computes a
// pair.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> turns: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;

// The upper 32 bits of a·b.
fn multiply_high(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}

fn element(i: u32) {
    let j = i % p.pairs;
    let head = i / p.pairs;
    let position = p.position + head / p.heads % p.steps;
    let turn = turns[j];
    // Whole turns overflow; what is left is between −½ and ½.
    let part = bitcast<i32>(position * turn.x + multiply_high(position, turn.y));
    let angle = f32(part) * 1.4629180792671596e-9;
    let c = m_cos(angle);
    let s = m_sin(angle);
    let at = head * 2u * p.pairs + j;
    let a = f32(x[at]);
    let b = f32(x[at + p.pairs]);
    y[at] = Elem(a * c - b * s);
    y[at + p.pairs] = Elem(b * c + a * s);
}

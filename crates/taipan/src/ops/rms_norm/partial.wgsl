// For workgroup.wgsl: a sum of squares, and the bits of the greatest magnitude.
struct Partial {
    squares: f32,
    top: u32,
}

fn join(a: Partial, b: Partial) -> Partial {
    return Partial(a.squares + b.squares, max(a.top, b.top));
}

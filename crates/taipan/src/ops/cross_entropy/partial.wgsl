// For workgroup.wgsl: a sum, and the number of its terms.
struct Partial {
    sum: f32,
    count: u32,
}

fn join(a: Partial, b: Partial) -> Partial {
    return Partial(a.sum + b.sum, a.count + b.count);
}

// x is [outer, count, inner]; an invocation folds up to BLOCK elements that are `inner` apart into
// one element of y, [outer, blocks, inner].
@group(0) @binding(0) var<storage, read> x: array<In>;
@group(0) @binding(1) var<storage, read_write> y: array<Out>;

fn element(i: u32) {
    let column = i % p.inner;
    let outer = i / p.inner / p.blocks;
    let start = i / p.inner % p.blocks * BLOCK;
    let end = min(start + BLOCK, p.count);
    var acc = 0u;
    for (var j = start; j < end; j++) {
        acc = join(acc, enter(f32(x[(outer * p.count + j) * p.inner + column])));
    }
    y[i] = Out(leave(acc, p.divisor));
}

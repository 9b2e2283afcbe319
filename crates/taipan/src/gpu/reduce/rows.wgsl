// x is [outer, count]; a workgroup folds BLOCK contiguous elements of a row into one element of y,
// [outer, blocks].
@group(0) @binding(0) var<storage, read> x: array<In>;
@group(0) @binding(1) var<storage, read_write> y: array<Out>;

fn line(i: u32, local: u32) {
    let row = i / p.blocks;
    let start = i % p.blocks * BLOCK;
    let end = min(start + BLOCK, p.count);
    var acc = 0u;
    for (var j = start + local; j < end; j += WIDTH) {
        acc = join(acc, enter(f32(x[row * p.count + j])));
    }
    acc = workgroup_join(acc, local);
    if local == 0u {
        y[i] = Out(leave(acc, p.divisor));
    }
}

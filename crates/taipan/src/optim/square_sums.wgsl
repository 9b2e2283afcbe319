// sums[first + i] = Σ x² of the i-th block of BLOCK elements of x, [len]; the last may be shorter.
// One workgroup per block.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;

fn line(i: u32, local: u32) {
    let start = i * BLOCK;
    let end = min(start + BLOCK, p.len);
    var sum = 0.0;
    for (var j = start + local; j < end; j += WIDTH) {
        let here = f32(x[j]);
        sum = fma(here, here, sum);
    }
    sum = workgroup_join(sum, local);
    if local == 0u {
        sums[p.first + i] = sum;
    }
}

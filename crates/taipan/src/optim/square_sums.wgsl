// sums[first + i] = Σ x² of the i-th block of BLOCK elements of x, [len]; the last may be shorter.
// One workgroup per block.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
@group(1) @binding(0) var<uniform> p: Params;

var<workgroup> partial: array<f32, WIDTH>;

fn line(i: u32, local: u32) {
    let start = i * BLOCK;
    let end = min(start + BLOCK, p.len);
    var sum = 0.0;
    for (var j = start + local; j < end; j += WIDTH) {
        let here = f32(x[j]);
        sum = fma(here, here, sum);
    }
    partial[local] = sum;
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            partial[local] += partial[local + half];
        }
    }
    if local == 0u {
        sums[p.first + i] = partial[0];
    }
}

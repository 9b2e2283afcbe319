// Chains of multiply-adds in registers: 8 of vec4 for each invocation, p.steps long. They do not
// wait for each other.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn element(i: u32) {
    let factor = vec4(x[0]);
    let term = vec4(x[1]);
    var a = vec4(f32(i));
    var b = a + 1.0;
    var c = a + 2.0;
    var d = a + 3.0;
    var e = a + 4.0;
    var f = a + 5.0;
    var g = a + 6.0;
    var h = a + 7.0;
    for (var step = 0u; step < p.steps; step++) {
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        c = fma(c, factor, term);
        d = fma(d, factor, term);
        e = fma(e, factor, term);
        f = fma(f, factor, term);
        g = fma(g, factor, term);
        h = fma(h, factor, term);
    }
    y[i] = dot(a + b + c + d + e + f + g + h, vec4(1.0));
}

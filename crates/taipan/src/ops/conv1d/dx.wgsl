// The gradient of an input per invocation: weight[j]·g[t] of every result t it was tap j of, and that of
// its place in the next window. Inputs are numbered as time runs through them: the k − 1 of the window, if
// p.window, and then those of x.
@group(0) @binding(0) var<storage, read> g: array<f32>; // [b, l, d]
@group(0) @binding(1) var<storage, read> weight: array<Elem>; // [d, k]
@group(0) @binding(2) var<storage, read> starts: array<u32>; // [b, l], if p.starts
@group(0) @binding(3) var<storage, read> dnext: array<Elem>; // [b, k − 1, d]
@group(0) @binding(4) var<storage, read_write> dx: array<Elem>; // [b, l, d]
@group(0) @binding(5) var<storage, read_write> dwindow: array<Elem>; // [b, k − 1, d], if p.window
@group(1) @binding(0) var<uniform> p: Params;

fn element(index: u32) {
    let before = p.k - 1u;
    // Inputs that have no gradient, and the others.
    let skipped = select(before, 0u, p.window == 1u);
    let count = p.l + before - skipped;
    let c = index % p.d;
    let i = index / p.d % count + skipped;
    let b = index / p.d / count;
    let first = max(i, before) - before;
    var sum = 0.0;
    for (var t = first; t <= i; t++) {
        if t == p.l {
            sum += f32(dnext[(b * before + i - p.l) * p.d + c]);
            break;
        }
        // A text that starts with this input is its own.
        if p.starts == 1u && t + before > i {
            if starts[b * p.l + t] != 0u {
                break;
            }
        }
        sum = fma(f32(weight[c * p.k + i - t]), g[(b * p.l + t) * p.d + c], sum);
    }
    if i >= before {
        dx[(b * p.l + i - before) * p.d + c] = Elem(sum);
    } else {
        dwindow[(b * before + i) * p.d + c] = Elem(sum);
    }
}

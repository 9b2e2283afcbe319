// The gradient of one input per invocation: the sum of weight[j]·g[t] over the results t in which
// it was multiplied by tap j, plus its gradient in the next conv_state. Inputs are numbered in the
// order of time: the k − 1 of conv_state, if p.conv_state, and then those of x.
@group(0) @binding(0) var<storage, read> g: array<f32>; // [b, l, d]
@group(0) @binding(1) var<storage, read> weight: array<Elem>; // [d, k]
@group(0) @binding(2) var<storage, read> seq_start: array<u32>; // [b, l], if p.seq_start
@group(0) @binding(3) var<storage, read> dnext: array<Elem>; // [b, k − 1, d]
@group(0) @binding(4) var<storage, read_write> dx: array<Elem>; // [b, l, d]
// [b, k − 1, d], if p.conv_state
@group(0) @binding(5) var<storage, read_write> dconv_state: array<Elem>;

fn element(index: u32) {
    let before = p.k - 1u;
    // Inputs without and with a gradient.
    let skipped = select(before, 0u, p.conv_state == 1u);
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
        // A start at the input itself does not separate it from later results.
        if p.seq_start == 1u && t + before > i {
            if seq_start[b * p.l + t] != 0u {
                break;
            }
        }
        sum = fma(f32(weight[c * p.k + i - t]), g[(b * p.l + t) * p.d + c], sum);
    }
    if i >= before {
        dx[(b * p.l + i - before) * p.d + c] = Elem(sum);
    } else {
        dconv_state[(b * before + i) * p.d + c] = Elem(sum);
    }
}

// The inputs of a batch entry, as time runs through them: the k − 1 of the window and then those of x. So
// result t is made of tap j times input t + j, for j < k, and the next window is inputs l and on.
@group(0) @binding(0) var<storage, read> x: array<Elem>; // [b, l, d]
@group(0) @binding(1) var<storage, read> weight: array<Elem>; // [d, k]
@group(0) @binding(2) var<storage, read> bias: array<Elem>; // [d], if p.bias
@group(0) @binding(3) var<storage, read> window: array<Elem>; // [b, k − 1, d], if p.window
@group(0) @binding(4) var<storage, read> starts: array<u32>; // [b, l], if p.starts
@group(1) @binding(0) var<uniform> p: Params;

// Input i, within reach.
fn input(b: u32, i: u32, c: u32) -> f32 {
    let before = p.k - 1u;
    if i >= before {
        return f32(x[(b * p.l + i - before) * p.d + c]);
    }
    return f32(window[(b * before + i) * p.d + c]);
}

// How many of the `most` inputs before input `end` are there and of the same text as the last.
fn reach(b: u32, end: u32, most: u32) -> u32 {
    let before = p.k - 1u;
    for (var n = 0u; n < most; n++) {
        let i = end - 1u - n;
        if i < before {
            return select(n, most, p.window == 1u);
        }
        if p.starts == 1u {
            if starts[b * p.l + i - before] != 0u {
                return n + 1u;
            }
        }
    }
    return most;
}

// reach() of result t for those of t − 1: `seen`, or 0 if there is none.
fn step(b: u32, t: u32, seen: u32) -> u32 {
    if seen == 0u {
        return reach(b, t + p.k, p.k);
    }
    if p.starts == 1u {
        if starts[b * p.l + t] != 0u {
            return 1u;
        }
    }
    return min(seen + 1u, p.k);
}

// The sum of result t, of which `seen` inputs are within reach.
fn sum_at(b: u32, t: u32, c: u32, seen: u32) -> f32 {
    var sum = 0.0;
    if p.bias == 1u {
        sum = f32(bias[c]);
    }
    for (var j = p.k - seen; j < p.k; j++) {
        sum = fma(f32(weight[c * p.k + j]), input(b, t + j, c), sum);
    }
    return sum;
}

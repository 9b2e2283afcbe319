// The inputs of a row, which may contain several packed sequences, in the order of time: the k − 1
// of conv_state and then those of x. Result t is the sum over j < k of tap j times input t + j, and
// the next conv_state has the inputs from l on.
@group(0) @binding(0) var<storage, read> x: array<Elem>; // [b, l, d]
@group(0) @binding(1) var<storage, read> weight: array<Elem>; // [d, k]
@group(0) @binding(2) var<storage, read> bias: array<Elem>; // [d], if p.bias
@group(0) @binding(3) var<storage, read> conv_state: array<Elem>; // [b, k − 1, d], if p.conv_state
@group(0) @binding(4) var<storage, read> seq_start: array<u32>; // [b, l], if p.seq_start

// The results of an invocation: those of channel c of row b from `first` to `end`. Neighbouring
// invocations have neighbouring channels.
struct Work {
    b: u32,
    c: u32,
    first: u32,
    end: u32,
}

fn work_of(i: u32) -> Work {
    let first = i / p.d % p.blocks * p.steps;
    return Work(i / p.d / p.blocks, i % p.d, first, min(first + p.steps, p.l));
}

// Input i, which must exist.
fn input(b: u32, i: u32, c: u32) -> f32 {
    let before = p.k - 1u;
    if i >= before {
        return f32(x[(b * p.l + i - before) * p.d + c]);
    }
    return f32(conv_state[(b * before + i) * p.d + c]);
}

// How many of the `most` inputs before input `end` exist and belong to the sequence of the last.
fn reach(b: u32, end: u32, most: u32) -> u32 {
    let before = p.k - 1u;
    for (var n = 0u; n < most; n++) {
        let i = end - 1u - n;
        if i < before {
            return select(n, most, p.conv_state == 1u);
        }
        if p.seq_start == 1u {
            if seq_start[b * p.l + i - before] != 0u {
                return n + 1u;
            }
        }
    }
    return most;
}

// reach() for result t, given `seen`, that of result t − 1, or 0 for the first.
fn step(b: u32, t: u32, seen: u32) -> u32 {
    if seen == 0u {
        return reach(b, t + p.k, p.k);
    }
    if p.seq_start == 1u {
        if seq_start[b * p.l + t] != 0u {
            return 1u;
        }
    }
    return min(seen + 1u, p.k);
}

// The sum of result t over its last `seen` inputs.
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

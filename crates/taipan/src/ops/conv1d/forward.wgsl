// y = φ(pre): an invocation computes p.steps results of a channel and, after the last, the next
// conv_state.
@group(0) @binding(5) var<storage, read_write> y: array<Elem>; // [b, l, d]
@group(0) @binding(6) var<storage, read_write> next: array<Elem>; // [b, k − 1, d]

fn element(i: u32) {
    let work = work_of(i);
    let b = work.b;
    let c = work.c;
    var seen = 0u;
    for (var t = work.first; t < work.end; t++) {
        seen = step(b, t, seen);
        y[(b * p.l + t) * p.d + c] = Elem(value(sum_at(b, t, c, seen)));
    }
    if work.end < p.l {
        return;
    }
    let before = p.k - 1u;
    let unseen = before - reach(b, p.l + before, before);
    for (var j = 0u; j < before; j++) {
        var last = 0.0;
        if j >= unseen {
            last = input(b, p.l + j, c);
        }
        next[(b * before + j) * p.d + c] = Elem(last);
    }
}

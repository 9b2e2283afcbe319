// Common to the products: y = a·b per entry of a batch, with a prologue on one operand or an
// epilogue on the sums.
//
// `a` is [m, k], or [k, m] if TA; `b` is [k, n], or [n, k] if TB; y is [m, n], once for each of the
// `splits` of k. WHOLE says that there is one entry and one split. Epilogue: the function is
// applied to the sums, to which BIAS adds aux, [n]. Prologue: the operand that DERIVATIVE names is
// multiplied by the function's derivative, computed from aux, which has its shape.
@group(0) @binding(2) var<storage, read> aux: array<Aux>;
@group(0) @binding(3) var<storage, read_write> y: array<Out>;

const LEFT = 1u;
const RIGHT = 2u;

// The epilogue of a sum; `slice` counts the splits of all entries.
fn put(slice: u32, row: u32, column: u32, sum: f32) {
    let at = (slice * p.m + row) * p.n + column;
    var pre = sum;
    if BIAS == 1u {
        pre += f32(aux[column]);
    }
    if SAVE_PRE == 1u {
        put_second(at, pre);
    }
    if DERIVATIVE == 0u {
        pre = value(pre);
    }
    y[at] = Out(pre);
}

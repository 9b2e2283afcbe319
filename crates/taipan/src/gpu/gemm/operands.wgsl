// Common to the products: y = a·b per entry of a batch, with a prologue on one operand or an
// epilogue on the sums.
//
// `a` is [m, k], or [k, m] if TA; `b` is [k, n], or [n, k] if TB; y is [m, n], once for each of the
// `splits` of k. WHOLE says that there is one entry and one split. Epilogue: the function is
// applied to the sums, to which aux is added, [n] or [m, n], as ADDS says, or [n] and a matrix of its
// own. Prologue: the operand that DERIVATIVE names is multiplied by the function's derivative,
// computed from aux, which has its shape.
@group(0) @binding(2) var<storage, read> aux: array<Aux>;

const LEFT = 1u;
const RIGHT = 2u;
const BIAS = 1u;
const MATRIX = 2u;
const BIAS_AND_MATRIX = 3u;

// The epilogue of a sum; `slice` counts the splits of all entries.
fn put(slice: u32, row: u32, column: u32, sum: f32) {
    let at = (slice * p.m + row) * p.n + column;
    var pre = sum;
    if ADDS == BIAS || ADDS == BIAS_AND_MATRIX {
        pre += f32(aux[column]);
    }
    if ADDS == MATRIX || ADDS == BIAS_AND_MATRIX {
        pre += matrix_at(at);
    }
    if SAVE_PRE == 1u {
        put_second(at, pre);
    }
    if DERIVATIVE == 0u {
        pre = value(pre);
    }
    y[at] = Out(pre);
}

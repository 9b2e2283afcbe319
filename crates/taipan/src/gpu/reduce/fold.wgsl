// Sums, maxima and minima as u32: the bits of a sum, or the order of a maximum. All start from 0. A
// minimum is the maximum of the negated elements, negated.
alias Partial = u32;

fn negated_for_min(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ (MIN << 31u));
}

fn enter(x: f32) -> u32 {
    if MAX == 1u {
        return order(negated_for_min(x));
    }
    return bitcast<u32>(x);
}

fn join(a: u32, b: u32) -> u32 {
    if MAX == 1u {
        return max(a, b);
    }
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}

// The result as a float.
fn leave(a: u32, divisor: f32) -> f32 {
    if MAX == 1u {
        let bits = select(~a, a & 0x7fffffffu, a >= 0x80000000u);
        return negated_for_min(bitcast<f32>(select(bits, 0x7fc00000u, a == 0xffffffffu)));
    }
    if divisor == 1.0 {
        return bitcast<f32>(a);
    }
    return bitcast<f32>(a) / divisor;
}

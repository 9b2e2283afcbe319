// Sums and maxima as u32: the bits of a sum, or the order of a maximum. Both start from 0.
alias Partial = u32;

fn enter(x: f32) -> u32 {
    if MAX == 1u {
        return order(x);
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
        return bitcast<f32>(select(bits, 0x7fc00000u, a == 0xffffffffu));
    }
    if divisor == 1.0 {
        return bitcast<f32>(a);
    }
    return bitcast<f32>(a) / divisor;
}

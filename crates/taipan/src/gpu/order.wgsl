// A number that orders floats as they are: greater for greater ones, equal for equal ones, the
// greatest for NaN. 0 is below them all. On bits, because compilers may assume that there is no
// NaN.
fn order(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return 0xffffffffu;
    }
    if magnitude == bits || magnitude == 0u {
        return magnitude | 0x80000000u;
    }
    return ~bits;
}

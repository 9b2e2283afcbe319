// Maps a float to an integer with the same order; NaN is the greatest, and 0 is below all. Computed
// on bits, because compilers may assume that there is no NaN.
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

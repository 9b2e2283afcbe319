//! Threefry-2x32 with 20 rounds (Salmon and others, 2011): random bits from a key and a counter. It
//! adds, rotates and xors words of 32 bits, so that loops over it vectorise and every device gives
//! the same bits: `gpu/threefry.wgsl` is the same function.

/// 64 random bits. With one key, different counters give different bits.
#[inline(always)]
pub(crate) fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    // Four rounds, then words of the key.
    let rounds = |[mut x0, mut x1]: [u32; 2], rotations: [u32; 4], i: usize| {
        for rotation in rotations {
            x0 = x0.wrapping_add(x1);
            x1 = x1.rotate_left(rotation) ^ x0;
        }
        [x0.wrapping_add(keys[i % 3]), x1.wrapping_add(keys[(i + 1) % 3]).wrapping_add(i as u32)]
    };
    let (odd, even) = ([13, 15, 26, 6], [17, 29, 16, 24]);
    let x = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    let x = rounds(rounds(x, odd, 1), even, 2);
    rounds(rounds(rounds(x, odd, 3), even, 4), odd, 5)
}

#[cfg(test)]
mod tests {
    use super::threefry;

    /// The known answers of Random123, its authors' library.
    #[test]
    fn known_answers() {
        let ones = [u32::MAX; 2];
        let (key, counter) = ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]);
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry(ones, ones), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(threefry(key, counter), [0xc492_3a9c, 0x483d_f7a0]);
    }
}

//! Threefry-2x32 (Salmon and others, 2011): random bits from a key and a counter. It adds, rotates
//! and xors words of 32 bits, so that loops over it vectorise and every device gives the same bits:
//! `gpu/wgsl/threefry.wgsl` has the same functions.

/// 64 random bits, by 20 rounds. With one key, different counters give different bits.
#[inline(always)]
pub(crate) fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let (keys, x) = start(key, counter);
    let x = four_rounds(four_rounds(x, keys, 1), keys, 2);
    four_rounds(four_rounds(four_rounds(x, keys, 3), keys, 4), keys, 5)
}

/// The same by 13 rounds, for what takes bits for every element: the fewest for which the authors of
/// the function know of no statistical flaw (`threefry.h` of their library Random123).
#[inline(always)]
pub(crate) fn threefry_13(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let (keys, x) = start(key, counter);
    let x = four_rounds(four_rounds(four_rounds(x, keys, 1), keys, 2), keys, 3);
    round(x, EVEN[0])
}

const ODD: [u32; 4] = [13, 15, 26, 6];
const EVEN: [u32; 4] = [17, 29, 16, 24];

/// Words of the key, and the counter with the first two.
#[inline(always)]
fn start(key: [u32; 2], counter: [u32; 2]) -> ([u32; 3], [u32; 2]) {
    let keys = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    (keys, [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])])
}

/// Four rounds, the `i`-th time, and then words of the key.
#[inline(always)]
fn four_rounds(mut x: [u32; 2], keys: [u32; 3], i: usize) -> [u32; 2] {
    for rotation in if i % 2 == 1 { ODD } else { EVEN } {
        x = round(x, rotation);
    }
    let key = keys[(i + 1) % 3].wrapping_add(i as u32);
    [x[0].wrapping_add(keys[i % 3]), x[1].wrapping_add(key)]
}

#[inline(always)]
fn round([x0, x1]: [u32; 2], rotation: u32) -> [u32; 2] {
    let sum = x0.wrapping_add(x1);
    [sum, x1.rotate_left(rotation) ^ sum]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123, its authors' library.
    #[test]
    fn known_answers() {
        let (zeros, ones) = ([0; 2], [u32::MAX; 2]);
        let (key, counter) = ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]);
        assert_eq!(threefry(zeros, zeros), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry(ones, ones), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(threefry(key, counter), [0xc492_3a9c, 0x483d_f7a0]);
        assert_eq!(threefry_13(zeros, zeros), [0x9d1c_5ec6, 0x8bd5_0731]);
        assert_eq!(threefry_13(ones, ones), [0xfd36_d048, 0x2d17_272c]);
        assert_eq!(threefry_13(key, counter), [0xba3e_4725, 0xf27d_669e]);
    }
}

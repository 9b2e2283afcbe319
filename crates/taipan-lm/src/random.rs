//! Random bits that follow from a seed, for all of this crate: a seed gives a [`Key`], a key gives
//! further keys, and nothing is remembered.

/// The seed of the `index`-th parameter of a model.
///
/// Not a [`Key`]: the weights of every seed, and with them the results of every run, follow from
/// this formula.
pub(crate) fn parameter_seed(seed: u64, index: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9).wrapping_add(index)
}

/// A point of a tree of random numbers, whose branches are named by words.
#[derive(Clone, Copy)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn new(seed: u64) -> Key {
        Key(0).split(seed)
    }

    /// The branch of this name: the finaliser of SplitMix64.
    pub(crate) fn split(self, word: u64) -> Key {
        let mut z = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Key(z ^ z >> 31)
    }

    /// 64 random bits.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Where a random permutation of `0..count` takes `index`: a Feistel network permutes the
    /// smallest `0..4ᵏ` that contains `0..count`, and is applied again while it leads outside.
    pub(crate) fn permute(self, index: u64, count: u64) -> u64 {
        const ROUNDS: u64 = 6;
        let key = Key::new(self.bits());
        let half = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2);
        let mask = (1 << half) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> half, value & mask);
            for round in 0..ROUNDS {
                (left, right) = (right, left ^ (key.split(round).split(right).bits() & mask));
            }
            value = left << half | right;
            if value < count {
                return value;
            }
        }
    }
}

/// Random numbers one after the other, from the branches of a key.
pub(crate) struct Draws {
    key: Key,
    count: u64,
}

impl Draws {
    pub(crate) fn new(key: Key) -> Draws {
        Draws { key, count: 0 }
    }

    /// One from 0 to less than `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.count += 1;
        ((u128::from(self.key.split(self.count).bits()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_permutation_takes_everything_somewhere_else() {
        for count in (1..70).chain([255, 256, 257, 1000]) {
            for key in (0..5).map(Key) {
                let found: BTreeSet<u64> = (0..count).map(|i| key.permute(i, count)).collect();
                assert!(found.len() as u64 == count && found.last() == Some(&(count - 1)));
            }
        }
        let largest = (0..100).map(|i| Key(1).permute(u64::MAX - 1 - i, u64::MAX));
        assert_eq!(largest.collect::<BTreeSet<_>>().len(), 100, "nothing overflows");
    }

    /// Orders of data and weights follow from these.
    #[test]
    fn bits_are_those_of_earlier_versions() {
        assert_eq!(Key::new(7).bits(), 0x63cb_e1e4_5932_0dd7);
        assert_eq!(Key::new(7).split(0).split(0).split(1).bits(), 0x08ba_bb47_77dd_74d3);
        assert_eq!([0, 1, 2, 3, 4].map(|i| Key::new(7).permute(i, 5)), [0, 4, 2, 1, 3]);
        assert_eq!(parameter_seed(7, 3), 7 * 0x9e37_79b9 + 3);
    }
}

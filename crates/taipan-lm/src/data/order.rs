//! In which order training visits its text.

/// The order in which a run takes blocks of the training text.
///
/// Text is a ring of tokens, cut into blocks of `len`. An epoch takes each block once, in a random order; the
/// next one cuts elsewhere and takes them in another order. Nothing is remembered: the place of any block
/// follows from `seed` and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What the order follows from.
    pub seed: u64,
    /// Blocks of a batch.
    pub rows: usize,
    /// Tokens of a block.
    pub len: usize,
}

impl Order {
    /// Blocks of an epoch over a ring of `tokens`. Less than a block is left out, elsewhere each time.
    pub fn blocks(&self, tokens: u64) -> u64 {
        tokens.checked_div(self.len as u64).unwrap_or(0).max(1)
    }

    /// Where in a ring of `tokens` row `row` of batch `index` begins.
    pub(super) fn place(&self, tokens: u64, index: u64, row: usize) -> u64 {
        let blocks = self.blocks(tokens);
        let number = u128::from(index) * self.rows as u128 + row as u128;
        let (epoch, number) = (number / u128::from(blocks), number % u128::from(blocks));
        let epoch = [epoch as u64, (epoch >> 64) as u64];
        let key = |purpose: u64| hash(&[self.seed, epoch[0], epoch[1], purpose]);
        let block = permuted(number as u64, blocks, key(0));
        let shift = key(1) % tokens;
        let place = u128::from(shift) + u128::from(block) * self.len as u128;
        (place % u128::from(tokens)) as u64
    }
}

/// Where a random permutation of `0..count` takes `index`: a Feistel network permutes the smallest `0..4ᵏ` with room
/// for them, and is applied again while it leads outside.
pub(super) fn permuted(index: u64, count: u64, key: u64) -> u64 {
    const ROUNDS: u64 = 6;
    let bits = u64::BITS - (count - 1).leading_zeros();
    let half = bits.div_ceil(2);
    let mask = (1 << half) - 1;
    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (hash(&[key, round, right]) & mask));
        }
        value = left << half | right;
        if value < count {
            return value;
        }
    }
}

/// Bits that look random: each word goes through the finaliser of SplitMix64.
pub(super) fn hash(words: &[u64]) -> u64 {
    words.iter().fold(0, |state: u64, word| {
        let mut z = (state ^ word).wrapping_add(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d049bb133111eb);
        z ^ z >> 31
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_permutation_takes_everything_somewhere_else() {
        for count in (1..70).chain([255, 256, 257, 1000]) {
            for key in 0..5 {
                let places: BTreeSet<u64> = (0..count).map(|i| permuted(i, count, key)).collect();
                assert!(places.len() as u64 == count && places.last() == Some(&(count - 1)));
            }
        }
        let largest = (0..100).map(|i| permuted(u64::MAX - 1 - i, u64::MAX, 1));
        assert_eq!(largest.collect::<BTreeSet<_>>().len(), 100, "nothing overflows");
    }

    #[test]
    fn every_epoch_and_seed_has_its_own_order_and_its_own_cut() {
        let (tokens, blocks) = (64 * 40 + 7, 40);
        let (mut cuts, mut orders) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..10 {
            let order = Order { seed, rows: 5, len: 64 };
            assert_eq!(order.blocks(tokens), blocks);
            for epoch in 0..10 {
                let number = |i: u64| epoch * blocks + i;
                let places =
                    (0..blocks).map(number).map(|n| order.place(tokens, n / 5, n as usize % 5));
                let places: Vec<u64> = places.collect();
                let shift = places.iter().map(|place| (place + tokens - places[0]) % tokens);
                orders.insert(shift.collect::<Vec<_>>());
                cuts.insert(places.into_iter().collect::<BTreeSet<_>>());
            }
        }
        assert_eq!(orders.len(), 100, "wherever it is cut");
        assert!(cuts.len() > 90, "of 2567 cuts, two in a hundred are seldom the same");
    }
}

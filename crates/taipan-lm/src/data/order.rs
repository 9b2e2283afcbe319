//! In which order training visits its text.

use crate::random::Key;

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
        let key = Key::new(self.seed).split(epoch[0]).split(epoch[1]);
        let block = key.split(0).permute(number as u64, blocks);
        let shift = key.split(1).bits() % tokens;
        let place = u128::from(shift) + u128::from(block) * self.len as u128;
        (place % u128::from(tokens)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

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

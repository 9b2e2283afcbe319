//! In which order training visits its text.

use crate::random::Key;

/// The order in which a run visits blocks of the training text.
///
/// The text is a cyclic stream of tokens, cut into blocks of `block_size`. An epoch visits each
/// block once, in random order; the next epoch cuts at other offsets and shuffles again. There is
/// no state: the offset of a block follows from `seed` and the block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The seed of the order.
    pub seed: u64,
    /// Blocks per batch: each becomes a sequence.
    pub batch_size: usize,
    /// Tokens per block.
    pub block_size: usize,
}

impl Order {
    /// Blocks per epoch of a text of `tokens`. The remainder that does not fill a block is left
    /// out, elsewhere each time.
    pub fn blocks(&self, tokens: u64) -> u64 {
        tokens.checked_div(self.block_size as u64).unwrap_or(0).max(1)
    }

    /// The offset in a text of `tokens` at which sequence `sequence` of batch `index` begins.
    pub(super) fn offset(&self, tokens: u64, index: u64, sequence: usize) -> u64 {
        let blocks = self.blocks(tokens);
        let number = u128::from(index) * self.batch_size as u128 + sequence as u128;
        let (epoch, number) = (number / u128::from(blocks), number % u128::from(blocks));
        let epoch = [epoch as u64, (epoch >> 64) as u64];
        let key = Key::new(self.seed).split(epoch[0]).split(epoch[1]);
        let block = key.split(0).permute(number as u64, blocks);
        let shift = key.split(1).bits() % tokens;
        let offset = u128::from(shift) + u128::from(block) * self.block_size as u128;
        (offset % u128::from(tokens)) as u64
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
            let order = Order { seed, batch_size: 5, block_size: 64 };
            assert_eq!(order.blocks(tokens), blocks);
            for epoch in 0..10 {
                let number = |i: u64| epoch * blocks + i;
                let offsets =
                    (0..blocks).map(number).map(|n| order.offset(tokens, n / 5, n as usize % 5));
                let offsets: Vec<u64> = offsets.collect();
                let shift = offsets.iter().map(|offset| (offset + tokens - offsets[0]) % tokens);
                orders.insert(shift.collect::<Vec<_>>());
                cuts.insert(offsets.into_iter().collect::<BTreeSet<_>>());
            }
        }
        assert_eq!(orders.len(), 100, "wherever it is cut");
        assert!(cuts.len() > 90, "of 2567 cuts, two in a hundred are seldom the same");
    }
}

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

//! Maps from pairs of tokens.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Two neighbours.
pub(super) type Pair = (u32, u32);

/// A map from pairs. Its order is the same in every process, but depends on its history.
pub(super) type PairMap<T> = HashMap<Pair, T, BuildHasherDefault<PairHasher>>;

/// A fast hash of two ids, which nobody chooses to collide.
#[derive(Default)]
pub(super) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0.rotate_left(32) ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

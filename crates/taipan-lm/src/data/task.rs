//! Generated tasks that show what a selective state can do.

use serde::{Deserialize, Serialize};

use crate::random::{Draws, Key};
use crate::{Batch, IGNORE, InvalidValue};

/// A task without end: every batch is new, and follows from a seed and its number. Tokens are
/// bytes, so that the sequences can be read.
///
/// ```
/// use taipan_lm::data::Task;
///
/// let task = Task::SelectiveCopying { length: 12, data: 3 };
/// let (ids, targets) = task.sequence(7, 0);
/// assert_eq!(ids.len(), 15);
/// let letters: Vec<u32> =
///     ids.iter().copied().filter(|id| (*id as u8).is_ascii_uppercase()).collect();
/// assert_eq!(&targets[12..], letters, "at the three markers, the letters in their order");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Task {
    /// `data` letters among `length` tokens, the others dots; then as many markers, `|`, at which
    /// the letters are to be said in their order (Jing et al. 2019; Gu & Dao 2023, section 4.1.1).
    SelectiveCopying {
        /// Tokens before the markers.
        length: usize,
        /// Letters among them.
        data: usize,
    },
    /// Random letters, and once among them `#` and a letter; the last token is `#` again, and that
    /// letter is to be said (Olsson et al. 2022; Gu & Dao 2023, section 4.1.2).
    InductionHeads {
        /// Tokens, at least 3.
        length: usize,
    },
    /// Bits; at each, `o` or `e`: whether the ones so far are odd or even in number.
    Parity {
        /// Bits.
        length: usize,
    },
}

impl Task {
    /// Tokens of a sequence.
    pub fn block_size(&self) -> usize {
        match *self {
            Task::SelectiveCopying { length, data } => length + data,
            Task::InductionHeads { length } | Task::Parity { length } => length,
        }
    }

    /// An error unless there are such sequences.
    pub fn check(&self) -> Result<(), InvalidValue> {
        let least = if matches!(self, Task::InductionHeads { .. }) { 3 } else { 1 };
        let (Task::SelectiveCopying { length, .. }
        | Task::InductionHeads { length }
        | Task::Parity { length }) = *self;
        InvalidValue::check("task", "length", length, least..=1 << 16)?;
        match *self {
            Task::SelectiveCopying { data, .. } => {
                InvalidValue::check("task", "data", data, 1..=length)
            }
            _ => Ok(()),
        }
    }

    /// A sequence: its tokens, and what is to be said at each, [`IGNORE`] where nothing is.
    pub fn sequence(&self, seed: u64, number: u64) -> (Vec<u32>, Vec<u32>) {
        let mut random = Draws::new(Key::new(seed).split(number));
        let n = self.block_size();
        let (mut ids, mut targets) = (Vec::with_capacity(n), vec![IGNORE; n]);
        match *self {
            Task::SelectiveCopying { length, data } => {
                let mut said = 0;
                for at in 0..length {
                    // The probability that makes every choice of places equally likely.
                    let is_data = random.below(length - at) < data - said;
                    ids.push(u32::from(b'.'));
                    if is_data {
                        ids[at] = letter(b'A', &mut random);
                        targets[length + said] = ids[at];
                        said += 1;
                    }
                }
                ids.resize(n, u32::from(b'|'));
            }
            Task::InductionHeads { length } => {
                let at = random.below(length - 2);
                ids.extend((0..length).map(|_| letter(b'a', &mut random)));
                ids[at] = u32::from(b'#');
                ids[length - 1] = u32::from(b'#');
                targets[length - 1] = ids[at + 1];
            }
            Task::Parity { length } => {
                let mut is_odd = false;
                for target in &mut targets[..length] {
                    let is_one = random.below(2) == 1;
                    is_odd ^= is_one;
                    ids.push(u32::from(if is_one { b'1' } else { b'0' }));
                    *target = u32::from(if is_odd { b'o' } else { b'e' });
                }
            }
        }
        (ids, targets)
    }

    /// A batch of the sequences from number `first` on.
    pub(super) fn batch(&self, seed: u64, first: u64, batch_size: usize) -> Batch {
        let block_size = self.block_size();
        let mut batch = Batch { batch_size, block_size, ..Batch::default() };
        for sequence in 0..batch_size as u64 {
            let (ids, targets) = self.sequence(seed, first + sequence);
            batch.seq_start.extend((0..block_size).map(|at| u32::from(at == 0)));
            batch.ids.extend(ids);
            batch.targets.extend(targets);
        }
        batch
    }
}

/// One of 16 letters from `first` on.
fn letter(first: u8, random: &mut Draws) -> u32 {
    u32::from(first) + random.below(16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ids: &[u32]) -> String {
        ids.iter().map(|id| char::from_u32(*id).unwrap_or('?')).collect()
    }

    #[test]
    fn what_is_to_be_said_follows_from_the_tokens() {
        for number in 0..200 {
            let (ids, targets) = Task::Parity { length: 20 }.sequence(1, number);
            for at in 0..20 {
                let odd = ids[..=at].iter().filter(|id| **id == u32::from(b'1')).count() % 2 == 1;
                assert_eq!(targets[at], u32::from(if odd { b'o' } else { b'e' }));
            }
            let (ids, targets) = Task::InductionHeads { length: 9 }.sequence(1, number);
            let (read, said) = (text(&ids), *targets.last().unwrap());
            let at = read.find('#').unwrap();
            assert!(read.ends_with('#') && at < 8 && ids[at + 1] == said, "{read}");
            assert_eq!(targets.iter().filter(|target| **target != IGNORE).count(), 1);
            let (ids, targets) = Task::SelectiveCopying { length: 9, data: 9 }.sequence(1, number);
            assert_eq!((&ids[..9], &ids[9..]), (&targets[9..], &[u32::from(b'|'); 9][..]));
        }
    }

    #[test]
    fn places_and_letters_are_equally_likely() {
        let task = Task::SelectiveCopying { length: 8, data: 2 };
        let (mut places, mut letters) = ([0; 8], [0; 16]);
        for number in 0..4000 {
            let (ids, _) = task.sequence(3, number);
            for at in (0..8).filter(|at| ids[*at] != u32::from(b'.')) {
                places[at] += 1;
                letters[ids[at] as usize - usize::from(b'A')] += 1;
            }
        }
        assert!(places.iter().all(|count| (900..1100).contains(count)), "{places:?}");
        assert!(letters.iter().all(|count| (420..580).contains(count)), "{letters:?}");
    }
}

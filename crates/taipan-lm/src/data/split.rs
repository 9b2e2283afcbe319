//! What is learnt from, and what is held out to see how well.

use super::sources::{Section, Sources};
use crate::random::Key;
use crate::{Error, Result};

/// Which part of the text is held out from training.
///
/// Whole documents are, drawn at random, as many as fit into the fraction. If that leaves more than a quarter of it
/// open, since documents are too few or too large, the end of the largest other document is held out as well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// How much of the text, from 0 to less than 1.
    pub held_out: f64,
    /// Bytes of text that are held out at least, up to a half of all: a small fraction of little text would
    /// not fill one block. Nothing when `held_out` is 0.
    pub least: u64,
    /// What the draw follows from.
    pub seed: u64,
}

impl Default for Split {
    /// A twentieth, and at least 4 KiB.
    fn default() -> Self {
        Split { held_out: 0.05, least: 4 << 10, seed: 0 }
    }
}

/// The two parts of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Train,
    HeldOut,
}

impl Split {
    /// Every section of the sources with its part, in the order of the sources.
    pub(super) fn sections(&self, sources: &Sources) -> Result<Vec<(Section, Part)>> {
        let fraction = self.held_out;
        if !(0.0..1.0).contains(&fraction) {
            let why = format!("a fraction of {fraction}, expected 0 to less than 1");
            return Err(Error::invalid("held-out part", why));
        }
        let sizes = (0..sources.len()).map(|i| sources.size(i)).collect::<Result<Vec<_>>>()?;
        let total: u64 = sizes.iter().sum();
        if total == 0 {
            return Err(Error::invalid("data", "no text, expected some to learn from"));
        }
        let goal = match fraction {
            0.0 => 0,
            _ => ((fraction * total as f64) as u64).max(self.least.min(total / 2)).max(1),
        };
        let mut missing = goal;
        let mut held_out = vec![false; sizes.len()];
        let key = Key::new(self.seed);
        for number in 0..sizes.len() as u64 {
            let document = key.permute(number, sizes.len() as u64) as usize;
            if sizes[document] <= missing {
                held_out[document] = true;
                missing -= sizes[document];
            }
        }
        let cut = match missing > goal / 4 {
            true => {
                let whole = (0..sizes.len()).filter(|document| !held_out[*document]);
                // Larger than what is missing, or it would be held out.
                let largest =
                    whole.max_by_key(|document| (sizes[*document], usize::MAX - document));
                let largest = largest.expect("less than the whole is held out");
                Some((largest, sources.character_from(largest, sizes[largest] - missing)?))
            }
            false => None,
        };
        let mut sections = Vec::new();
        for section in sources.whole() {
            let document = section.document;
            match cut {
                Some((cut, at)) if cut == document => {
                    sections.push((Section { to: at, ..section }, Part::Train));
                    sections.push((Section { from: at, ..section }, Part::HeldOut));
                }
                _ if held_out[document] => sections.push((section, Part::HeldOut)),
                _ => sections.push((section, Part::Train)),
            }
        }
        Ok(sections)
    }
}

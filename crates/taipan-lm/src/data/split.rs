//! The split into training text and held-out text.

use super::sources::{Section, Sources};
use crate::Result;
use crate::error::ensure;
use crate::random::Key;

/// Which text is held out from training, to evaluate the model.
///
/// Random documents are held out, as many as fit into the fraction. If that leaves more than a
/// quarter of the fraction unfilled, since documents are too few or too large, the end of the
/// largest other document is held out as well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The fraction of the text, from 0 to less than 1.
    pub held_out: f64,
    /// The minimum to hold out, in bytes, up to half of the text: a small fraction of a short text
    /// would not fill one block. Ignored when `held_out` is 0.
    pub min_bytes: u64,
    /// The seed of the random choice.
    pub seed: u64,
}

impl Default for Split {
    /// A twentieth, and at least 4 KiB.
    fn default() -> Self {
        Split { held_out: 0.05, min_bytes: 4 << 10, seed: 0 }
    }
}

/// What a text is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subset {
    Train,
    HeldOut,
}

impl Subset {
    /// Its name in files.
    pub(super) fn name(self) -> &'static str {
        if self == Subset::Train { "train" } else { "held_out" }
    }
}

impl Split {
    /// Every section of the sources with its subset, in the order of the sources.
    pub(super) fn sections(&self, sources: &Sources) -> Result<Vec<(Section, Subset)>> {
        let fraction = self.held_out;
        let is_fraction = (0.0..1.0).contains(&fraction);
        ensure!(is_fraction, "held-out fraction", "{fraction} found, expected 0 to less than 1");
        let sizes = (0..sources.len()).map(|i| sources.size(i)).collect::<Result<Vec<_>>>()?;
        let total: u64 = sizes.iter().sum();
        ensure!(total > 0, "data", "no text, expected some to train on");
        let goal = match fraction {
            0.0 => 0,
            _ => ((fraction * total as f64) as u64).max(self.min_bytes.min(total / 2)).max(1),
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
        let mut cut = None;
        if missing > goal / 4 {
            let others = (0..sizes.len()).filter(|document| !held_out[*document]);
            // It is larger than what is missing, or it would be held out.
            let largest = others.max_by_key(|document| (sizes[*document], usize::MAX - document));
            let largest = largest.expect("not everything is held out");
            cut = Some((largest, sources.char_boundary(largest, sizes[largest] - missing)?));
        }
        let mut sections = Vec::new();
        for section in sources.documents() {
            match cut {
                Some((cut, at)) if cut == section.document => {
                    sections.push((Section { end: at, ..section }, Subset::Train));
                    sections.push((Section { start: at, ..section }, Subset::HeldOut));
                }
                _ if held_out[section.document] => sections.push((section, Subset::HeldOut)),
                _ => sections.push((section, Subset::Train)),
            }
        }
        Ok(sections)
    }
}

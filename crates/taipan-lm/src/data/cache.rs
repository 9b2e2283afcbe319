//! Tokens on disk.
//!
//! A cache is a directory. Numbers are little-endian.
//!
//! | file | |
//! |---|---|
//! | `manifest.json` | what the other files hold; written last, so that without it there is no cache |
//! | `train.tokens`, `held_out.tokens` | ids of 1, 2 or 4 bytes, whichever the vocabulary needs |
//! | `train.documents`, `held_out.documents` | where each document begins, u64 |
//! | `held_out.lengths` | bytes of text that each token stands for, u16 |

use std::fs::{self, File};
use std::path::Path;

use memmap2::Mmap;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const FORMAT: &str = "taipan tokens 1";

/// What a cache holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// Bytes of a token.
    pub width: usize,
    pub vocab_size: usize,
    /// The id at the beginning of every document.
    pub end: Option<u32>,
    pub train: Counts,
    pub held_out: Counts,
    /// Of tokens, documents and lengths.
    pub fingerprint: String,
}

/// What a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub documents: u64,
    pub tokens: u64,
    /// Bytes of text.
    pub bytes: u64,
}

/// Bytes of a token of a vocabulary.
pub(super) fn width(vocab_size: usize) -> usize {
    match vocab_size {
        ..=0x100 => 1,
        0x101..=0x10000 => 2,
        _ => 4,
    }
}

impl Manifest {
    pub fn read(directory: &Path) -> Result<Manifest> {
        let path = directory.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(Error::io(&path))?;
        let refuse = |why: String| Error::invalid(path.display().to_string(), why);
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|error| refuse(format!("not the manifest of a token cache: {error}")))?;
        if manifest.format != FORMAT {
            return Err(refuse(format!("format {:?}, expected {FORMAT:?}", manifest.format)));
        }
        let expected = width(manifest.vocab_size);
        if manifest.width != expected {
            let found = manifest.width;
            return Err(refuse(format!("{found} bytes per token, expected {expected}")));
        }
        if manifest.train.tokens == 0 {
            return Err(refuse("no tokens to train on".into()));
        }
        Ok(manifest)
    }
}

/// Tokens of one part as a ring: the first follows on the last.
#[derive(Debug)]
pub(super) struct Ring {
    tokens: Numbers,
    documents: Numbers,
}

/// A token and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Token {
    pub id: u32,
    /// It is the first of a document.
    pub begins: bool,
}

impl Ring {
    pub fn open(directory: &Path, name: &str, width: usize, counts: Counts) -> Result<Ring> {
        let place = directory.join(format!("{name}.documents"));
        let documents = Numbers::open(&place, size_of::<u64>(), counts.documents)?;
        let rising = |i| documents.get(i - 1) < documents.get(i);
        let fine = match counts.documents {
            0 => counts.tokens == 0,
            n => {
                documents.get(0) == 0 && documents.get(n - 1) < counts.tokens && (1..n).all(rising)
            }
        };
        if !fine {
            let why = format!("not the places of documents among {} tokens", counts.tokens);
            return Err(Error::invalid(place.display().to_string(), why));
        }
        let place = directory.join(format!("{name}.tokens"));
        Ok(Ring { tokens: Numbers::open(&place, width, counts.tokens)?, documents })
    }

    pub fn len(&self) -> u64 {
        self.tokens.len()
    }

    /// Tokens from place `at` on, round and round.
    pub fn from(&self, at: u64) -> impl Iterator<Item = Token> {
        let (mut place, mut document) = (at, self.documents.first_from(at));
        std::iter::repeat_with(move || {
            if place == self.len() {
                (place, document) = (0, 0);
            }
            let begins = document < self.documents.len() && self.documents.get(document) == place;
            let token = Token { id: self.tokens.get(place) as u32, begins };
            (place, document) = (place + 1, document + u64::from(begins));
            token
        })
    }
}

/// A file of unsigned numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Nothing of an empty file, which cannot be mapped everywhere.
    map: Option<Mmap>,
    width: usize,
}

impl Numbers {
    pub fn open(path: &Path, width: usize, count: u64) -> Result<Numbers> {
        let file = File::open(path).map_err(Error::io(path))?;
        let found = file.metadata().map_err(Error::io(path))?.len();
        let expected = u128::from(count) * width as u128;
        if u128::from(found) != expected {
            let why = format!("{found} bytes, expected {expected} by {MANIFEST}");
            return Err(Error::invalid(path.display().to_string(), why));
        }
        if count == 0 {
            return Ok(Numbers { map: None, width });
        }
        // SAFETY: the file is of our own cache, which is replaced by renaming new files over old ones: nobody
        // writes to a file that is in use or shortens it.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
        Ok(Numbers { map: Some(map), width })
    }

    fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    pub fn len(&self) -> u64 {
        (self.bytes().len() / self.width) as u64
    }

    pub fn get(&self, index: u64) -> u64 {
        let at = index as usize * self.width;
        let mut number = [0; size_of::<u64>()];
        number[..self.width].copy_from_slice(&self.bytes()[at..at + self.width]);
        u64::from_le_bytes(number)
    }

    /// The first of these rising numbers that is not below `least`.
    fn first_from(&self, least: u64) -> u64 {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle) < least {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

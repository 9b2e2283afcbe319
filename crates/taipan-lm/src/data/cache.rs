//! Tokens on disk.
//!
//! A cache is a directory. Integers are little-endian.
//!
//! | file | |
//! |---|---|
//! | `manifest.json` | sizes and checksums of the others; written last, as the sign of a cache |
//! | `train.tokens`, `held_out.tokens` | ids of 1, 2 or 4 bytes, whichever the vocabulary needs |
//! | `train.documents`, `held_out.documents` | where each document begins, u64 |
//! | `held_out.lengths` | bytes of text of each token, u16 |

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::split::Subset;
use crate::checksum::{CHANGED, Checksum};
use crate::error::ensure;
use crate::filesystem::{self as fs, File};
use crate::{Error, Result};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const FORMAT: &str = "taipan tokens 2";

/// What the manifest has checksums of.
pub(super) const FILES: [&str; 5] = [
    "train.tokens",
    "train.documents",
    "held_out.tokens",
    "held_out.documents",
    "held_out.lengths",
];

/// Whether a file of this name belongs to the token cache of a [`Dataset`](super::Dataset).
pub fn is_cache_file(name: &str) -> bool {
    name == MANIFEST || FILES.contains(&name)
}

/// What a cache holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// Bytes of a token.
    pub width: usize,
    pub vocab_size: usize,
    /// The token at the beginning of every document.
    #[serde(rename = "end")]
    pub eos_token_id: Option<u32>,
    pub train: Counts,
    pub held_out: Counts,
    /// The checksums of [`FILES`].
    pub files: BTreeMap<String, Checksum>,
    /// The checksum of all of the above.
    pub fingerprint: Checksum,
}

/// What a subset holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
        let file = path.display();
        let manifest: Manifest = serde_json::from_str(&text).map_err(|error| {
            Error::invalid(&file, format!("not the manifest of a token cache: {error}"))
        })?;
        let Manifest { format, width, train, files, .. } = &manifest;
        ensure!(format == FORMAT, file, "format {format:?}, expected {FORMAT:?}");
        let (found, expected) = (manifest.fingerprint, manifest.expected_fingerprint());
        let why = format!("the fingerprint is {found}, but that of its contents {expected}");
        ensure!(found == expected, file, "{why}: {CHANGED}");
        let expected = self::width(manifest.vocab_size);
        ensure!(*width == expected, file, "{width} bytes per token, expected {expected}");
        ensure!(train.tokens > 0, file, "no tokens to train on");
        let names = files.keys();
        let is_complete = names.clone().map(String::as_str).eq(BTreeSet::from(FILES));
        ensure!(is_complete, file, "checksums of {names:?}");
        Ok(manifest)
    }

    /// The checksum of everything but the fingerprint.
    pub fn expected_fingerprint(&self) -> Checksum {
        let rest = Manifest { fingerprint: Checksum::of(b""), ..self.clone() };
        Checksum::of(rest.to_json().as_bytes())
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts") + "\n"
    }
}

/// The tokens of a subset as a cycle: after the last comes the first.
#[derive(Debug)]
pub(super) struct CyclicTokens {
    tokens: IntFile,
    /// The offset of each document's first token.
    documents: IntFile,
}

/// A token of a cache.
#[derive(Clone, Copy)]
pub(super) struct Token {
    pub id: u32,
    /// Whether it is the first of a document.
    pub seq_start: bool,
}

impl CyclicTokens {
    pub fn open(
        directory: &Path,
        subset: Subset,
        width: usize,
        counts: Counts,
    ) -> Result<CyclicTokens> {
        let file = |kind| directory.join(format!("{}.{kind}", subset.name()));
        let path = file("documents");
        let documents = IntFile::open(&path, size_of::<u64>(), counts.documents)?;
        let (fit, tokens) = (documents.are_offsets(counts.tokens)?, counts.tokens);
        ensure!(fit, path.display(), "not the offsets of documents among {tokens} tokens");
        Ok(CyclicTokens { tokens: IntFile::open(&file("tokens"), width, tokens)?, documents })
    }

    pub fn len(&self) -> u64 {
        self.tokens.count
    }

    /// `count` tokens from `offset` on, again from the first after the last.
    pub fn read(&self, offset: u64, count: usize) -> Result<Vec<Token>> {
        let mut tokens: Vec<Token> = Vec::with_capacity(count);
        let mut next = offset;
        while tokens.len() < count && self.len() > 0 {
            let end = self.len().min(next + (count - tokens.len()) as u64);
            let first = tokens.len();
            let token = |id| Token { id: id as u32, seq_start: false };
            tokens.extend(self.tokens.read(next..end)?.map(token));
            for document in self.documents.within(next..end)? {
                tokens[first + (document - next) as usize].seq_start = true;
            }
            next = end % self.len();
        }
        Ok(tokens)
    }
}

/// A file of unsigned integers. It is read, not mapped into memory: a file that another program
/// shortens is an error then, where a map would end the process.
#[derive(Debug)]
pub(super) struct IntFile {
    path: PathBuf,
    /// Locked, since seeking and reading are two calls.
    file: Mutex<File>,
    width: usize,
    count: u64,
}

impl IntFile {
    pub fn open(path: &Path, width: usize, count: u64) -> Result<IntFile> {
        let file = File::open(path).map_err(Error::io(path))?;
        let found = file.metadata().map_err(Error::io(path))?.len();
        let expected = u128::from(count) * width as u128;
        let fits = u128::from(found) == expected;
        ensure!(fits, path.display(), "{found} bytes, expected {expected} by {MANIFEST}");
        Ok(IntFile { path: path.to_owned(), file: Mutex::new(file), width, count })
    }

    /// The integers at these indices.
    pub fn read(&self, range: Range<u64>) -> Result<impl Iterator<Item = u64>> {
        let width = self.width;
        let mut bytes = vec![0; (range.end - range.start) as usize * width];
        let mut file = self.file.lock().expect("nobody panics with it");
        let offset = SeekFrom::Start(range.start * width as u64);
        let read = file.seek(offset).and_then(|_| file.read_exact(&mut bytes));
        if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof) {
            let expected = self.count * width as u64;
            let why = format!("less than {expected} bytes: it was shortened while in use");
            return Err(Error::invalid(self.path.display(), why));
        }
        read.map_err(Error::io(&self.path))?;
        Ok((0..bytes.len() / width).map(move |i| {
            let mut number = [0; size_of::<u64>()];
            number[..width].copy_from_slice(&bytes[i * width..(i + 1) * width]);
            u64::from_le_bytes(number)
        }))
    }

    /// Of ascending integers, those that lie in `range`.
    fn within(&self, range: Range<u64>) -> Result<impl Iterator<Item = u64>> {
        let first = self.lower_bound(range.start)?;
        let last = self.count.min(first + (range.end - range.start));
        Ok(self.read(first..last)?.take_while(move |number| *number < range.end))
    }

    /// Of ascending integers, the index of the first that is not below `bound`.
    fn lower_bound(&self, bound: u64) -> Result<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.read(middle..middle + 1)?.all(|number| number < bound) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// Whether they begin with 0, ascend, and are less than `count`; there are none only if `count`
    /// is 0.
    fn are_offsets(&self, count: u64) -> Result<bool> {
        const BLOCK: usize = 1 << 16;
        let mut next = 0;
        for first in (0..self.count).step_by(BLOCK) {
            for number in self.read(first..self.count.min(first + BLOCK as u64))? {
                if number < next || number >= count || (next == 0 && number > 0) {
                    return Ok(false);
                }
                next = number + 1;
            }
        }
        Ok((self.count == 0) == (count == 0))
    }
}

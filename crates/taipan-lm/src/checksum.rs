//! Checksums of what is on disk: XXH3 with 128 bits, which is as fast as memory. It detects damage
//! and tells data apart; it is no protection against somebody who wants two files to have the same
//! one.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::error::ensure;
use crate::filesystem::File;
use crate::{Error, Result};

/// The XXH3 checksum of 128 bits, as 32 hexadecimal digits. It tells data apart; it is not a
/// cryptographic hash.
///
/// ```
/// assert_eq!(taipan_lm::checksum(b"a"), "a96faf705af16834e6c632b61e964e1f");
/// ```
pub fn checksum(bytes: &[u8]) -> String {
    Checksum::of(bytes).to_string()
}

/// What a checksum that does not fit means.
pub(crate) const CHANGED: &str = "it was changed after it was written";

/// An error unless every file of a directory has the checksum that it was written with.
pub(crate) fn verify_files(files: &BTreeMap<String, Checksum>, directory: &Path) -> Result<()> {
    files.iter().try_for_each(|(name, checksum)| checksum.verify(&directory.join(name)))
}

/// 128 bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Checksum(u128);

impl Checksum {
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(XxHash3_128::oneshot(bytes))
    }

    /// An error unless the file at `path` is the one that had this checksum when it was written.
    fn verify(self, path: &Path) -> Result<()> {
        let mut file = File::open(path).map_err(Error::io(path))?;
        let (mut hasher, mut block) = (XxHash3_128::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut block) {
                Ok(0) => break,
                Ok(read) => hasher.write(&block[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(path)(error)),
            }
        }
        let found = Checksum::from(hasher);
        let file = path.display();
        ensure!(found == self, file, "the checksum is {found}, expected {self}: {CHANGED}");
        Ok(())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Checksum, String> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.map(Checksum).ok_or_else(|| format!("{text:?}, expected 32 hexadecimal digits"))
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> String {
        checksum.to_string()
    }
}

impl From<XxHash3_128> for Checksum {
    fn from(hasher: XxHash3_128) -> Checksum {
        Checksum(hasher.finish_128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values_of_xxh3() {
        // xxhsum -H2 of no bytes and of "a"
        assert_eq!(Checksum::of(b"").to_string(), "99aa06d3014798d86001c324468d497f");
        assert_eq!(Checksum::of(b"a").to_string(), "a96faf705af16834e6c632b61e964e1f");
        let mut hasher = XxHash3_128::new();
        (0..1000).for_each(|i| hasher.write(&[i as u8; 7]));
        let whole: Vec<u8> = (0..1000).flat_map(|i| [i as u8; 7]).collect();
        assert_eq!(Checksum::from(hasher), Checksum::of(&whole), "in chunks or at once");
    }

    #[test]
    fn checksums_are_read_as_written() {
        let checksum = Checksum::of(b"taipan");
        assert_eq!(Checksum::try_from(checksum.to_string()), Ok(checksum));
        for wrong in ["", "12", "+9aa06d3014798d86001c324468d497f", &"g".repeat(32)] {
            assert!(Checksum::try_from(wrong.to_owned()).is_err(), "{wrong:?}");
        }
    }
}

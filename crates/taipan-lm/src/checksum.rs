//! Checksums of what is on disk: XXH3 with 128 bits, which is as fast as memory. It detects damage
//! and tells data apart; it is no protection against somebody who wants two files to have the same
//! one.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

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

/// 128 bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Checksum(u128);

impl Checksum {
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(XxHash3_128::oneshot(bytes))
    }

    /// An error unless the file at `path` is the one that had this checksum when it was written.
    pub fn verify(self, path: &Path) -> Result<()> {
        let mut file = File::open(path).map_err(Error::io(path))?;
        let (mut hasher, mut block) = (Hasher::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut block) {
                Ok(0) => break,
                Ok(read) => hasher.write(&block[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(path)(error)),
            }
        }
        let found = hasher.finish();
        match found == self {
            true => Ok(()),
            false => {
                let why = format!(
                    "the checksum is {found}, expected {self}: it was changed after it was written"
                );
                Err(Error::invalid(path.display().to_string(), why))
            }
        }
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Checksum, String> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| digits);
        number.map(Checksum).ok_or_else(|| format!("{text:?}, expected 32 hexadecimal digits"))
    }
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Checksum, String> {
        text.parse()
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> String {
        checksum.to_string()
    }
}

/// The checksum of bytes that come in chunks.
pub(crate) struct Hasher(XxHash3_128);

impl Hasher {
    pub fn new() -> Hasher {
        Hasher(XxHash3_128::new())
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub fn finish(&self) -> Checksum {
        Checksum(self.0.finish_128())
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
        let mut hasher = Hasher::new();
        (0..1000).for_each(|i| hasher.write(&[i as u8; 7]));
        let whole: Vec<u8> = (0..1000).flat_map(|i| [i as u8; 7]).collect();
        assert_eq!(hasher.finish(), Checksum::of(&whole), "in chunks or at once");
    }

    #[test]
    fn checksums_are_read_as_written() {
        let checksum = Checksum::of(b"taipan");
        assert_eq!(checksum.to_string().parse(), Ok(checksum));
        for wrong in ["", "12", "+9aa06d3014798d86001c324468d497f", &"g".repeat(32)] {
            assert!(wrong.parse::<Checksum>().is_err(), "{wrong:?}");
        }
    }
}

//! Text of any length, in chunks of valid UTF-8.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::Reason;
use crate::{Error, Result};

/// Bytes of a chunk at most: less than 2¹⁶, so that the bytes of a token can be counted in 16 bits.
pub(crate) const CHUNK: usize = 32 << 10;

/// The text that `reader` gives, in chunks of at most [`CHUNK`] bytes. A chunk ends with the last
/// line end in it, or in the middle of a line that is longer.
pub(crate) struct Chunks<'a> {
    reader: Box<dyn Read + 'a>,
    name: PathBuf,
    buffer: Vec<u8>,
    /// Where in the document the buffer begins.
    offset: u64,
}

impl<'a> Chunks<'a> {
    /// The chunks of what follows `offset` in a document.
    pub(super) fn new(reader: Box<dyn Read + 'a>, name: &Path, offset: u64) -> Chunks<'a> {
        Chunks { reader, name: name.to_owned(), buffer: Vec::new(), offset }
    }

    /// The next chunk; or else the offset of a byte that is not valid UTF-8.
    pub(super) fn next_valid(&mut self) -> Result<std::result::Result<Option<String>, u64>> {
        let room = (CHUNK - self.buffer.len()) as u64;
        let read = self.reader.by_ref().take(room).read_to_end(&mut self.buffer);
        read.map_err(Error::io(&self.name))?;
        let last = self.buffer.len() < CHUNK;
        let valid = match std::str::from_utf8(&self.buffer) {
            Ok(text) => text.len(),
            // The rest of the last character is still to come.
            Err(error) if error.error_len().is_none() && !last => error.valid_up_to(),
            Err(error) => return Ok(Err(self.offset + error.valid_up_to() as u64)),
        };
        let line_end = self.buffer[..valid].iter().rposition(|byte| *byte == b'\n');
        let end = match line_end {
            Some(at) if !last => at + 1,
            _ => valid,
        };
        let rest = self.buffer.split_off(end);
        let chunk = std::mem::replace(&mut self.buffer, rest);
        self.offset += end as u64;
        let chunk = String::from_utf8(chunk).expect("checked above");
        Ok(Ok(Some(chunk).filter(|chunk| !chunk.is_empty())))
    }

    /// All that is left, valid or not.
    pub(super) fn into_bytes(mut self) -> Result<Vec<u8>> {
        self.reader.read_to_end(&mut self.buffer).map_err(Error::io(&self.name))?;
        Ok(self.buffer)
    }
}

impl Iterator for Chunks<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_valid() {
            Ok(Ok(chunk)) => chunk.map(Ok),
            Ok(Err(offset)) => {
                Some(Err(Error::invalid(self.name.display(), Reason::NotUtf8 { offset })))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

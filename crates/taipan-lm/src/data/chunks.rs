//! Text of any length, in chunks of valid UTF-8.

use std::io::Read;
use std::path::PathBuf;

use crate::{Error, Result};

/// Bytes of a chunk at most: less than 2¹⁶, so that the bytes of a token can be counted in 16 bits.
pub(crate) const CHUNK: usize = 32 << 10;

/// The text that `reader` gives, in chunks of at most [`CHUNK`] bytes. A chunk ends with the last
/// line end in it, or in the middle of a line that is longer.
pub(crate) struct Chunks<'a> {
    pub(super) reader: Box<dyn Read + 'a>,
    pub(super) name: PathBuf,
    pub(super) buffer: Vec<u8>,
    /// Where in the document the buffer begins.
    pub(super) offset: u64,
}

impl Chunks<'_> {
    fn chunk(&mut self) -> Result<Option<String>> {
        let room = (CHUNK - self.buffer.len()) as u64;
        let read = self.reader.by_ref().take(room).read_to_end(&mut self.buffer);
        read.map_err(Error::io(&self.name))?;
        let last = self.buffer.len() < CHUNK;
        let valid = match std::str::from_utf8(&self.buffer) {
            Ok(text) => text.len(),
            // The rest of the last character is still to come.
            Err(error) if error.error_len().is_none() && !last => error.valid_up_to(),
            Err(error) => {
                let at = error.valid_up_to();
                let (byte, offset) = (self.buffer[at], self.offset + at as u64);
                let why = format!("not valid UTF-8: the byte at offset {offset} is 0x{byte:02x}");
                return Err(Error::invalid(self.name.display(), why));
            }
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
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }
}

impl Iterator for Chunks<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.chunk().transpose()
    }
}

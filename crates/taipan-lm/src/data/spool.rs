//! Text that is in no file as it is: decompressed, from lines of JSON, from standard input. It is
//! read several times, from anywhere, and may be more than memory holds.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::sources::{Document, ReadAt};
use crate::{Error, Result};

/// A temporary file, while it is written. It has no name: whatever happens, nothing remains of it.
pub(super) struct Spool {
    file: BufWriter<File>,
    reader: Arc<SpooledText>,
    directory: PathBuf,
    len: u64,
}

impl Spool {
    /// A new one, in this directory.
    pub fn new(directory: &Path) -> Result<Spool> {
        let open = || {
            let file = tempfile::tempfile_in(directory)?;
            let reader = Arc::new(SpooledText(Mutex::new(file.try_clone()?)));
            Ok((BufWriter::with_capacity(1 << 16, file), reader))
        };
        let (file, reader) = open().map_err(Error::io(directory))?;
        Ok(Spool { file, reader, directory: directory.to_owned(), len: 0 })
    }

    /// How much is in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Add some text.
    pub fn push(&mut self, text: &str) -> Result<()> {
        self.file.write_all(text.as_bytes()).map_err(Error::io(&self.directory))?;
        self.len += text.len() as u64;
        Ok(())
    }

    /// The text from `offset` on as a document of the file `name`.
    pub fn document(&self, name: &Arc<Path>, offset: u64) -> Document {
        let text: Arc<dyn ReadAt> = self.reader.clone();
        Document::Part { name: name.clone(), text, offset, len: self.len - offset }
    }

    /// Remove the text from `offset` on.
    pub fn truncate(&mut self, offset: u64) -> Result<()> {
        let mut truncate = || {
            self.file.seek(SeekFrom::Start(offset))?;
            self.file.get_mut().set_len(offset)
        };
        truncate().map_err(Error::io(&self.directory))?;
        self.len = offset;
        Ok(())
    }

    /// Everything is written, and the documents can be read.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(Error::io(&self.directory))
    }
}

/// The file while it is read. Its position is shared with the writer's, which is done by then.
#[derive(Debug)]
struct SpooledText(Mutex<File>);

impl ReadAt for SpooledText {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut file = self.0.lock().expect("nobody panics with it");
        file.seek(SeekFrom::Start(offset))?;
        file.read(buffer)
    }
}

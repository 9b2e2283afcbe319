//! What files contain: text or documents in lines of JSON, compressed or not.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Cursor, Read, Seek};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde_json::value::RawValue;

use super::Reason;
use super::chunks::Chunks;
use super::parquet;
use super::zstd::ZstdReader;
use crate::error::ensure;
use crate::{Error, Result};

/// How much of a text is looked at to tell it from other data.
const HEAD: u64 = 8 << 10;

/// Bytes of a line of JSON at most: it is held in memory.
const LINE: u64 = 1 << 28;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub compression: Compression,
    pub content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// One document.
    Text,
    /// A document per line, in a key of a JSON object.
    JsonLines,
    /// A document per row, in a column.
    Parquet,
}

impl Format {
    /// Of a file, by its name.
    pub fn of(path: &Path) -> Format {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let (name, compression) =
            [(".gz", Compression::Gzip), (".zst", Compression::Zstd), (".zstd", Compression::Zstd)]
                .into_iter()
                .find_map(|(end, compression)| Some((name.strip_suffix(end)?, compression)))
                .unwrap_or((&name, Compression::None));
        let content = match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("jsonl" | "ndjson") => Content::JsonLines,
            Some("parquet") => Content::Parquet,
            _ => Content::Text,
        };
        Format { compression, content }
    }

    /// Of a stream without a name, by what it begins with.
    #[cfg(not(target_family = "wasm"))]
    pub fn of_stream(mut reader: Box<dyn Read>) -> std::io::Result<(Format, Box<dyn Read>)> {
        let mut magic = Vec::new();
        reader.by_ref().take(4).read_to_end(&mut magic)?;
        let compression = match magic[..] {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstd,
            _ => Compression::None,
        };
        let mut reader = decompress(compression, Box::new(Cursor::new(magic).chain(reader)));
        let mut head = Vec::new();
        reader.by_ref().take(HEAD).read_to_end(&mut head)?;
        // A JSON object begins a line of JSON, nowhere else: prose does not begin so, and training
        // on raw JSON is hardly ever what is meant.
        let first = head.trim_ascii_start();
        let is_json = first.starts_with(b"{")
            && first[1..].trim_ascii_start().first().is_some_and(|byte| b"\"}".contains(byte));
        let content = match is_json {
            _ if head.starts_with(b"PAR1") => Content::Parquet,
            true => Content::JsonLines,
            false => Content::Text,
        };
        let format = Format { compression: Compression::None, content };
        Ok((format, Box::new(Cursor::new(head).chain(reader))))
    }

    /// Whether the file is its one document, byte by byte.
    #[cfg(not(target_family = "wasm"))]
    pub fn is_plain(self) -> bool {
        self == Format { compression: Compression::None, content: Content::Text }
    }
}

fn decompress(compression: Compression, reader: Box<dyn Read>) -> Box<dyn Read> {
    match compression {
        Compression::None => reader,
        Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::new(reader))),
        Compression::Zstd => Box::new(ZstdReader::new(BufReader::new(reader))),
    }
}

/// A part of what a file contains.
pub(super) enum Piece<'a> {
    /// Some text of a document.
    Text(&'a str),
    /// The document ends here.
    End,
}

/// Takes the documents of a file, piece by piece.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Piece) -> Result<()>;

/// Why a file is not used, and the error that it is where that is not tolerated.
pub(super) type Rejected = (Reason, Error);

/// A file to read.
pub(super) struct TextFile<'a> {
    pub name: &'a Path,
    pub format: Format,
    /// The key of the text in lines of JSON.
    pub text_key: &'a str,
}

impl TextFile<'_> {
    /// Give `sink` every document. When the file is rejected it has been given some of them.
    pub fn read(&self, reader: Box<dyn Read>, sink: Sink) -> Result<Option<Rejected>> {
        let mut reader = decompress(self.format.compression, reader);
        match self.format.content {
            Content::Text => self.text(reader, sink),
            Content::JsonLines => self.json_lines(BufReader::with_capacity(1 << 16, reader), sink),
            // What is compressed or in no file cannot be sought in.
            Content::Parquet => {
                let mut bytes = Vec::new();
                reader.read_to_end(&mut bytes).map_err(Error::io(self.name))?;
                self.parquet(Cursor::new(bytes), sink)
            }
        }
    }

    /// The same, of a Parquet file that can be sought in.
    pub fn parquet(&self, file: impl Read + Seek, sink: Sink) -> Result<Option<Rejected>> {
        parquet::read(file, self.name, self.text_key, sink).map(|()| None)
    }

    fn rejected(&self, reason: Reason) -> Result<Option<Rejected>> {
        let why = match reason {
            Reason::NotUtf8 { .. } => reason.to_string(),
            _ => format!("{reason}, expected UTF-8 text"),
        };
        Ok(Some((reason, Error::invalid(self.name.display(), why))))
    }

    fn text(&self, mut reader: Box<dyn Read>, sink: Sink) -> Result<Option<Rejected>> {
        let mut head = Vec::new();
        reader.by_ref().take(HEAD).read_to_end(&mut head).map_err(Error::io(self.name))?;
        if head.is_empty() || head.contains(&0) {
            let reason = if head.is_empty() { Reason::Empty } else { Reason::Binary };
            return self.rejected(reason);
        }
        let mut chunks = Chunks::new(Box::new(Cursor::new(head).chain(reader)), self.name, 0);
        loop {
            match chunks.next_valid()? {
                Err(offset) => return self.rejected(Reason::NotUtf8 { offset }),
                Ok(Some(chunk)) => sink(Piece::Text(&chunk))?,
                Ok(None) => break,
            }
        }
        sink(Piece::End)?;
        Ok(None)
    }

    fn json_lines(&self, mut reader: impl BufRead, sink: Sink) -> Result<Option<Rejected>> {
        let (mut line, mut offset, mut is_first) = (Vec::new(), 0, true);
        for number in 1.. {
            line.clear();
            let read = reader.by_ref().take(LINE).read_until(b'\n', &mut line);
            if read.map_err(Error::io(self.name))? == 0 {
                break;
            }
            let place = format!("{}:{number}", self.name.display());
            ensure!((line.len() as u64) < LINE, place, "a line of {LINE} bytes or more");
            let text = match std::str::from_utf8(&line) {
                Ok(text) => text,
                Err(error) => {
                    let offset = offset + error.valid_up_to() as u64;
                    return self.rejected(Reason::NotUtf8 { offset });
                }
            };
            offset += line.len() as u64;
            if text.trim().is_empty() {
                continue;
            }
            match self.text_of(text, &place) {
                Ok(text) if text.is_empty() => {}
                Ok(text) => {
                    sink(Piece::Text(&text))?;
                    sink(Piece::End)?;
                }
                Err(error) if is_first => return Ok(Some((Reason::NoTextKey, error))),
                Err(error) => return Err(error),
            }
            is_first = false;
        }
        if is_first { self.rejected(Reason::Empty) } else { Ok(None) }
    }

    /// The text of a line of JSON, which is at `place`.
    fn text_of(&self, line: &str, place: &str) -> Result<String> {
        let key = self.text_key;
        let object: BTreeMap<String, &RawValue> = serde_json::from_str(line)
            .map_err(|error| Error::invalid(place, format!("not a JSON object: {error}")))?;
        let Some(value) = object.get(key) else {
            let keys: Vec<String> = object.keys().map(|key| format!("{key:?}")).collect();
            let found = if keys.is_empty() { "none".into() } else { keys.join(", ") };
            return Err(Error::invalid(place, format!("no key {key:?}, found {found}")));
        };
        serde_json::from_str(value.get()).map_err(|error| {
            let why = if value.get().starts_with('"') {
                error.to_string()
            } else {
                "not a string".into()
            };
            Error::invalid(place, format!("{key:?} is no text: {why}"))
        })
    }
}

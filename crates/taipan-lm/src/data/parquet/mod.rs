//! Columns of text in Parquet files (<https://parquet.apache.org/docs/file-format/>): strings, not
//! nested, as data sets of text have them. Pages are read one by one.

mod page;
mod snappy;
mod thrift;

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::format::{Piece, Sink};
use crate::{Error, Result};
use page::{Column, Page};
use thrift::Value;

/// The physical type of strings.
const BYTE_ARRAY: i64 = 6;
/// The repetition of a column that may have nulls.
const OPTIONAL: i64 = 1;
/// Bytes of a footer at most; it is held in memory.
const FOOTER: u64 = 1 << 28;

/// Give `sink` every text of a column that is neither null nor empty, as a document.
pub(super) fn read(
    mut file: impl Read + Seek,
    name: &Path,
    column: &str,
    sink: Sink,
) -> Result<()> {
    let wrong = |why: String| Error::invalid(name.display(), why);
    let damaged = |why: &str| wrong(format!("cannot be read as Parquet: {why}"));
    let io = |error: std::io::Error| Error::io(name)(error);
    let end = file.seek(SeekFrom::End(0)).map_err(io)?;
    let mut tail = [0; 8];
    if end < 12 {
        return Err(damaged("it is too short"));
    }
    file.seek(SeekFrom::Start(end - 8)).map_err(io)?;
    file.read_exact(&mut tail).map_err(io)?;
    let size = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if &tail[4..] != b"PAR1" {
        return Err(damaged("it does not end with PAR1"));
    }
    if size > (end - 12).min(FOOTER) {
        return Err(damaged("its footer has a wrong size"));
    }
    file.seek(SeekFrom::Start(end - 8 - size)).map_err(io)?;
    let mut footer = vec![0; size as usize];
    file.read_exact(&mut footer).map_err(io)?;
    let footer = thrift::read(&mut &footer[..]).ok_or_else(|| damaged("its footer"))?;
    let is_optional = column_of(&footer, column).map_err(wrong)?;
    let mut row = 0;
    for group in footer.list(4) {
        let chunk = group.list(1).iter().find(|chunk| {
            let path = chunk.field(3).list(3);
            path.len() == 1 && path[0].text() == column.as_bytes()
        });
        let meta = chunk.ok_or_else(|| damaged("a row group without the column"))?.field(3);
        let dictionary = meta.field(11).int();
        let data = meta.field(9).int().ok_or_else(|| damaged("a column without pages"))?;
        let start = dictionary.filter(|offset| (1..data).contains(offset)).unwrap_or(data);
        let mut reader = Column {
            codec: meta.field(4).int().unwrap_or(-1),
            is_optional,
            dictionary: Vec::new(),
        };
        let mut left = meta.field(5).int().unwrap_or(0);
        let mut offset = u64::try_from(start).map_err(|_| damaged("a column without pages"))?;
        while left > 0 {
            let page = Page::read(&mut file, &mut offset).map_err(io)?;
            let page = page.ok_or_else(|| damaged("the header of a page"))?;
            let (values, rows) = reader.values(page).map_err(|why| damaged(&why))?;
            for value in values {
                row += 1;
                let text = std::str::from_utf8(&value).map_err(|error| {
                    let at = error.valid_up_to();
                    wrong(format!("text {row}: not valid UTF-8: byte at offset {at}"))
                })?;
                if !text.is_empty() {
                    sink(Piece::Text(text))?;
                    sink(Piece::End)?;
                }
            }
            left -= rows as i64;
        }
    }
    Ok(())
}

/// Whether the column may have nulls; or why it cannot be read.
fn column_of(footer: &Value, name: &str) -> std::result::Result<bool, String> {
    let schema = footer.list(2);
    let (mut at, mut names) = (1, Vec::new());
    while let Some(element) = schema.get(at) {
        if element.field(4).text() == name.as_bytes() {
            let (kind, repetition) = (element.field(1).int(), element.field(3).int().unwrap_or(0));
            return match (kind, repetition) {
                (Some(BYTE_ARRAY), 0 | OPTIONAL) => Ok(repetition == OPTIONAL),
                _ => Err(format!("the column {name:?} has no texts, expected strings")),
            };
        }
        names.push(format!("{:?}", String::from_utf8_lossy(element.field(4).text())));
        // Over what is nested in it.
        let mut nested = 1;
        while nested > 0 && at < schema.len() {
            nested += schema[at].field(5).int().unwrap_or(0).max(0) - 1;
            at += 1;
        }
    }
    Err(format!("no column {name:?}, found {}", names.join(", ")))
}

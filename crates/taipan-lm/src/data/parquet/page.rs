//! Pages of a column of texts.

use std::io::{self, Read, Seek, SeekFrom};

use flate2::read::MultiGzDecoder;

use super::snappy;
use super::thrift::{self, Value, take, varint};
use crate::data::zstd::ZstdReader;

/// Bytes of the header of a page at most. It may have statistics, with values of the column.
const HEADER: usize = 1 << 20;

/// Values of a page at most: they are held in memory, and a few bytes can repeat one any number of
/// times.
const VALUES: usize = 1 << 22;

/// A page as it is in the file.
pub(super) struct Page {
    header: Value,
    body: Vec<u8>,
}

impl Page {
    /// The page at `offset`, which is then that of the next; none if it is damaged.
    pub fn read(file: &mut (impl Read + Seek), offset: &mut u64) -> io::Result<Option<Page>> {
        // How long a header is, only reading it tells.
        let (mut bytes, mut wanted) = (Vec::new(), 256);
        file.seek(SeekFrom::Start(*offset))?;
        let (header, used) = loop {
            file.by_ref().take((wanted - bytes.len()) as u64).read_to_end(&mut bytes)?;
            let mut rest = bytes.as_slice();
            match thrift::read(&mut rest) {
                Some(header) => break (header, bytes.len() - rest.len()),
                None if bytes.len() < wanted || wanted >= HEADER => return Ok(None),
                None => wanted *= 2,
            }
        };
        let size = header.field(3).int().and_then(|size| u64::try_from(size).ok());
        let Some(size) = size else { return Ok(None) };
        let mut body = Vec::new();
        file.seek(SeekFrom::Start(*offset + used as u64))?;
        file.by_ref().take(size).read_to_end(&mut body)?;
        *offset += used as u64 + size;
        Ok((body.len() as u64 == size).then_some(Page { header, body }))
    }
}

/// What is known of a column while its pages are read.
pub(super) struct Column {
    pub codec: i64,
    pub is_optional: bool,
    pub dictionary: Vec<Vec<u8>>,
}

type Outcome<T> = std::result::Result<T, String>;

impl Column {
    /// The values of a page that are not null, and how many there are with those. A page with a
    /// dictionary has none.
    pub fn values(&mut self, page: Page) -> Outcome<(Vec<Vec<u8>>, usize)> {
        let Page { header, body } = page;
        let count = |fields: &Value| {
            let count = fields.field(1).int().and_then(|count| usize::try_from(count).ok());
            let count = count.filter(|count| *count <= VALUES);
            count.ok_or(format!("a page without a number of values up to {VALUES}"))
        };
        let size = header.field(2).int().and_then(|size| usize::try_from(size).ok());
        let size = size.ok_or("a page without a size")?;
        match header.field(1).int() {
            Some(0) => {
                let (fields, page) = (header.field(5), self.decompress(&body, size)?);
                let (count, mut page) = (count(fields)?, page.as_slice());
                let mut present = count;
                if self.is_optional {
                    let levels = prefixed(&mut page).ok_or("definition levels")?;
                    present = count_present(levels, count)?;
                }
                Ok((self.decode(page, present, fields.field(2).int())?, count))
            }
            Some(2) => {
                let (fields, page) = (header.field(7), self.decompress(&body, size)?);
                self.dictionary = plain(&page, count(fields)?)?;
                Ok((Vec::new(), 0))
            }
            Some(3) => {
                let (fields, mut rest) = (header.field(8), body.as_slice());
                let mut levels = |field| {
                    let length = fields.field(field).int().unwrap_or(0);
                    let levels = take(&mut rest, usize::try_from(length).ok()?)?;
                    Some(levels)
                };
                let repetition = levels(6).ok_or("repetition levels")?.len();
                let definition = levels(5).ok_or("definition levels")?;
                let count = count(fields)?;
                let present =
                    if self.is_optional { count_present(definition, count)? } else { count };
                let size = size.checked_sub(repetition + definition.len());
                let size = size.ok_or("a page without a size")?;
                let page = match fields.field(7).int() {
                    Some(0) => rest.to_vec(),
                    _ => self.decompress(rest, size)?,
                };
                Ok((self.decode(&page, present, fields.field(4).int())?, count))
            }
            _ => Ok((Vec::new(), 0)),
        }
    }

    fn decode(&self, page: &[u8], count: usize, encoding: Option<i64>) -> Outcome<Vec<Vec<u8>>> {
        match encoding {
            Some(0) => plain(page, count),
            Some(2 | 8) if count == 0 => Ok(Vec::new()),
            Some(2 | 8) => {
                let (width, indices) = page.split_first().ok_or("indices of a dictionary")?;
                let value = |index: u32| {
                    let value = self.dictionary.get(index as usize);
                    value.cloned().ok_or("an index outside of the dictionary".to_owned())
                };
                hybrid(indices, *width, count)?.into_iter().map(value).collect()
            }
            other => {
                let other = other.unwrap_or(-1);
                Err(format!("values in encoding {other}, expected 0 (plain) or 8 (dictionary)"))
            }
        }
    }

    fn decompress(&self, bytes: &[u8], size: usize) -> Outcome<Vec<u8>> {
        let read = |reader: &mut dyn Read| {
            let (mut out, limit) = (Vec::new(), size as u64 + 1);
            let read = reader.take(limit).read_to_end(&mut out);
            read.map_err(|error| error.to_string()).map(|_| out)
        };
        let out = match self.codec {
            0 => bytes.to_vec(),
            1 => snappy::decompress(bytes, size).ok_or("a page that Snappy compressed")?,
            2 => read(&mut MultiGzDecoder::new(bytes))?,
            6 => read(&mut ZstdReader::new(bytes))?,
            codec => {
                let known = "0 (none), 1 (Snappy), 2 (gzip) or 6 (Zstandard)";
                return Err(format!("compression {codec}, expected {known}"));
            }
        };
        match out.len() == size {
            true => Ok(out),
            false => Err(format!("a page of {} bytes, expected {size}", out.len())),
        }
    }
}

/// Bytes behind their length.
fn prefixed<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take(bytes, 4)?.try_into().ok()?;
    take(bytes, usize::try_from(u32::from_le_bytes(length)).ok()?)
}

fn plain(mut page: &[u8], count: usize) -> Outcome<Vec<Vec<u8>>> {
    let value = |_| prefixed(&mut page).map(<[u8]>::to_vec).ok_or("too few values".to_owned());
    (0..count).map(value).collect()
}

/// How many of the levels are 1.
fn count_present(levels: &[u8], count: usize) -> Outcome<usize> {
    Ok(hybrid(levels, 1, count)?.into_iter().filter(|level| *level == 1).count())
}

/// Numbers of `width` bits, in runs of equal ones and in groups of eight.
fn hybrid(mut bytes: &[u8], width: u8, count: usize) -> Outcome<Vec<u32>> {
    let (width, mut numbers) = (usize::from(width), Vec::new());
    if width > 32 {
        return Err(format!("numbers of {width} bits, expected at most 32"));
    }
    while numbers.len() < count {
        let mut run = || {
            let head = usize::try_from(varint(&mut bytes)?).ok()?;
            let left = count - numbers.len();
            if head & 1 == 0 {
                let number = take(&mut bytes, width.div_ceil(8))?;
                let number =
                    number.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
                numbers.extend(std::iter::repeat_n(number, left.min(head >> 1)));
                return (head > 0).then_some(());
            }
            // What is behind the last number may be missing.
            let all = (head >> 1).checked_mul(8)?;
            let wanted = all.min(left);
            let size = all.checked_mul(width)?.div_ceil(8).min(bytes.len());
            let packed = take(&mut bytes, size)?;
            if packed.len() * 8 < wanted * width {
                return None;
            }
            for i in 0..wanted {
                let bit = |b: usize| {
                    let at = i * width + b;
                    u32::from(packed[at / 8] >> (at % 8) & 1) << b
                };
                numbers.push((0..width).map(bit).sum());
            }
            (head > 1).then_some(())
        };
        run().ok_or("packed numbers")?;
    }
    Ok(numbers)
}

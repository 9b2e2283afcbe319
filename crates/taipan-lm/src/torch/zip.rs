//! The zip archives that torch writes: entries that are stored, not compressed.
//!
//! What an archive says of itself is checked against its bytes. A stored entry is a range of them,
//! so that none can be larger than the file.

use std::collections::BTreeMap;
use std::ops::Range;

// The first bytes of records.
const END: &[u8] = b"PK\x05\x06";
const END_LOCATOR_64: &[u8] = b"PK\x06\x07";
const END_64: &[u8] = b"PK\x06\x06";
const CENTRAL: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

/// Bytes of the record at the end, without its comment.
const END_BYTES: usize = 22;

/// An entry of an archive.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Where its bytes are.
    pub(super) data: Range<usize>,
    /// The CRC-32 of its bytes, as the archive says.
    pub(super) crc: u32,
}

/// The entries of an archive by name, or why it is not one.
pub(super) fn entries(bytes: &[u8]) -> Result<BTreeMap<&str, Entry>, String> {
    let end = end_record(bytes).ok_or("no end of a zip archive, which torch writes since 1.6")?;
    let directory = directory(bytes, end).ok_or("the zip archive's end record is damaged")?;
    let mut found = BTreeMap::new();
    let mut at = directory.range.start;
    for _ in 0..directory.entries {
        let header = central(bytes, at, directory.range.end)
            .ok_or("an entry of the zip archive's directory is damaged")?;
        let name = str::from_utf8(header.name).map_err(|_| "a name in the archive is not UTF-8")?;
        // Bit 0: encrypted. Bit 3, sizes behind the data, does not matter: they are here as well.
        let is_stored = header.method == 0 && header.flags & 1 == 0 && header.size == header.stored;
        if !is_stored {
            return Err(format!("{name} is compressed or encrypted, which torch never does"));
        }
        let data = data(bytes, &header, directory.range.start)
            .ok_or_else(|| format!("{name} is not where the archive's directory says"))?;
        if found.insert(name, Entry { data, crc: header.crc }).is_some() {
            return Err(format!("{name} is in the archive twice"));
        }
        at = header.end;
    }
    if at != directory.range.end {
        return Err("the zip archive's directory has another length than it says".into());
    }
    Ok(found)
}

/// Where the record at the end begins: behind it is a comment of at most 65535 bytes.
fn end_record(bytes: &[u8]) -> Option<usize> {
    let last = bytes.len().checked_sub(END_BYTES)?;
    let fits = |at: &usize| {
        let comment = u16_at(bytes, at + 20).map(usize::from);
        begins(bytes, *at, END).is_some() && comment == Some(last - at)
    };
    (last.saturating_sub(0xffff)..=last).rev().find(fits)
}

struct Directory {
    range: Range<usize>,
    entries: usize,
}

/// What the record at the end says, or that of a large archive before it.
fn directory(bytes: &[u8], end: usize) -> Option<Directory> {
    let entries = usize::from(u16_at(bytes, end + 10)?);
    let (size, start) = (u32_at(bytes, end + 12)?, u32_at(bytes, end + 16)?);
    let (entries, size, start) = match entries == 0xffff || size == u32::MAX || start == u32::MAX {
        false => (entries, size as usize, start as usize),
        true => {
            let locator = end.checked_sub(20)?;
            begins(bytes, locator, END_LOCATOR_64)?;
            let end = size_at(bytes, locator + 8)?;
            begins(bytes, end, END_64)?;
            let entries = size_at(bytes, end.checked_add(32)?)?;
            (entries, size_at(bytes, end.checked_add(40)?)?, size_at(bytes, end.checked_add(48)?)?)
        }
    };
    let range = start..start.checked_add(size)?;
    (range.end <= end).then_some(Directory { range, entries })
}

/// A header of the directory.
struct Central<'a> {
    name: &'a [u8],
    flags: u16,
    method: u16,
    crc: u32,
    stored: usize,
    size: usize,
    /// Where the local header begins.
    local: usize,
    /// Where the next header of the directory begins.
    end: usize,
}

fn central(bytes: &[u8], at: usize, limit: usize) -> Option<Central<'_>> {
    begins(bytes, at, CENTRAL)?;
    let length = |at| u16_at(bytes, at).map(usize::from);
    let name_at = at + 46;
    let extra_at = name_at + length(at + 28)?;
    let comment_at = extra_at + length(at + 30)?;
    let end = comment_at + length(at + 32)?;
    (end <= limit).then_some(())?;
    // Numbers that do not fit 32 bits are in an extra field, in this order.
    let mut wide = wide_numbers(bytes.get(extra_at..comment_at)?);
    let mut number = |at| match u32_at(bytes, at)? {
        u32::MAX => wide.next(),
        small => Some(small as usize),
    };
    let (size, stored, local) = (number(at + 24)?, number(at + 20)?, number(at + 42)?);
    Some(Central {
        name: bytes.get(name_at..extra_at)?,
        flags: u16_at(bytes, at + 8)?,
        method: u16_at(bytes, at + 10)?,
        crc: u32_at(bytes, at + 16)?,
        stored,
        size,
        local,
        end,
    })
}

/// The numbers of the extra field 1, of which there is at most one.
fn wide_numbers(mut extra: &[u8]) -> impl Iterator<Item = usize> {
    let mut found: &[u8] = &[];
    while let (Some(id), Some(length)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let Some(field) = extra.get(4..4 + usize::from(length)) else { break };
        if id == 1 {
            found = field;
            break;
        }
        extra = &extra[4 + field.len()..];
    }
    found.chunks_exact(8).map_while(|number| size_at(number, 0))
}

/// The bytes of an entry, behind its local header and before the directory.
fn data(bytes: &[u8], header: &Central, limit: usize) -> Option<Range<usize>> {
    let at = header.local;
    begins(bytes, at, LOCAL)?;
    let name = at + 30;
    let extra = name + usize::from(u16_at(bytes, at + 26)?);
    (bytes.get(name..extra)? == header.name).then_some(())?;
    let start = extra + usize::from(u16_at(bytes, at + 28)?);
    let end = start.checked_add(header.size)?;
    (end <= limit).then_some(start..end)
}

/// Whether a record with this signature begins there.
fn begins(bytes: &[u8], at: usize, signature: &[u8]) -> Option<()> {
    bytes.get(at..)?.starts_with(signature).then_some(())
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

/// 64 bits, as a size of this machine.
fn size_at(bytes: &[u8], at: usize) -> Option<usize> {
    array_at(bytes, at).map(u64::from_le_bytes)?.try_into().ok()
}

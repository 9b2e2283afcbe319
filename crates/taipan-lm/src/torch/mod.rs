//! Files of tensors that `torch.save` wrote, read without running what is in them.
//!
//! ```text
//! a zip archive, not compressed
//!   NAME/data.pkl    a pickle: the dict of tensors, each with its shape, strides and storage
//!   NAME/data/0 …    the storages, row-major and little-endian
//! ```

mod pickle;
mod zip;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use taipan::DType;

use self::pickle::{Pickled, shown};
use crate::error::ensure;
use crate::safetensors::View;
use crate::{Error, Result};

/// The most that a pickle may take: it has a few hundred bytes per tensor, and no data. To read one
/// takes up to 80 times as much.
const MAX_PICKLE: usize = 4 << 20;

/// The tensors of a file, which was checked as a whole; `B` holds its bytes.
///
/// A pickle is a program that can name any function of Python. This reader knows those that make
/// tensors; a file that names another, as one that would run code does, is refused by that name.
pub struct TorchFile<B> {
    /// Of the file.
    name: String,
    bytes: B,
    tensors: BTreeMap<String, Stored>,
    /// For [`TorchFile::verify`]: the bytes and the CRC-32 of every entry.
    entries: Vec<(String, Range<usize>, u32)>,
}

/// Where a tensor is.
struct Stored {
    dtype: DType,
    shape: Vec<usize>,
    /// In elements.
    strides: Vec<usize>,
    /// The bytes from its first element to the end of its storage.
    bytes: Range<usize>,
}

impl<B: AsRef<[u8]>> TorchFile<B> {
    /// The tensors of a file's bytes; errors begin with `name`.
    pub fn parse(name: impl Into<String>, bytes: B) -> Result<Self> {
        let name = name.into();
        let (tensors, entries) =
            contents(bytes.as_ref()).map_err(|why| Error::invalid(&name, why))?;
        Ok(TorchFile { name, bytes, tensors, entries })
    }

    /// All bytes of the file.
    #[cfg(unix)]
    pub(crate) fn bytes(&self) -> &B {
        &self.bytes
    }

    /// The names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The type and the shape of a tensor. That there is none is an error.
    pub fn spec(&self, name: &str) -> Result<(DType, &[usize])> {
        let Stored { dtype, shape, .. } = self.stored(name)?;
        Ok((*dtype, shape))
    }

    /// What is stored under a name, row by row: a tensor that is not stored so is copied. That
    /// there is nothing is an error.
    pub fn view(&self, name: &str) -> Result<View<'_>> {
        let stored = self.stored(name)?;
        let bytes = &self.bytes.as_ref()[stored.bytes.clone()];
        Ok(View { dtype: stored.dtype, shape: &stored.shape, bytes: stored.rows(bytes) })
    }

    /// An error unless every entry of the archive has the checksum that it was written with.
    pub fn verify(&self) -> Result<()> {
        let table = crc_table();
        for (entry, range, expected) in &self.entries {
            let bytes = &self.bytes.as_ref()[range.clone()];
            let step = |crc: u32, byte: &u8| table[usize::from(crc as u8 ^ byte)] ^ crc >> 8;
            let found = !bytes.iter().fold(!0, step);
            let entry = shown(entry);
            ensure!(
                found == *expected,
                self.name,
                "the checksum of {entry} is {found:08x}, expected {expected:08x}: it was changed \
                 after it was written"
            );
        }
        Ok(())
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        let stored = self.tensors.get(name);
        stored.ok_or_else(|| Error::invalid(&self.name, format!("{name} is missing")))
    }
}

impl TorchFile<memmap2::Mmap> {
    /// Map a file into memory: what is not looked at is not read.
    pub fn open(path: &std::path::Path) -> Result<Self> {
        TorchFile::parse(path.display().to_string(), crate::safetensors::map(path)?)
    }
}

type Contents = (BTreeMap<String, Stored>, Vec<(String, Range<usize>, u32)>);

fn contents(bytes: &[u8]) -> std::result::Result<Contents, String> {
    let entries = zip::entries(bytes)?;
    let mut pickles = entries.keys().filter_map(|name| name.strip_suffix("data.pkl"));
    let folder = match (pickles.next(), pickles.next()) {
        (Some(folder), None) => folder,
        (None, _) => {
            return Err("no data.pkl in the archive, expected what torch.save writes".into());
        }
        (Some(_), Some(_)) => return Err("more than one data.pkl in the archive".into()),
    };
    let entry = |name: &str| entries.get(format!("{folder}{name}").as_str());
    if let Some(order) = entry("byteorder").map(|entry| &bytes[entry.data.clone()])
        && order != b"little"
    {
        return Err("its numbers are not little-endian".into());
    }
    let pickle = &bytes[entry("data.pkl").expect("found above").data.clone()];
    if pickle.len() > MAX_PICKLE {
        return Err(format!("data.pkl has {} bytes, expected at most {MAX_PICKLE}", pickle.len()));
    }
    let pickled = pickle::tensors(pickle).map_err(|why| format!("data.pkl: {why}"))?;
    let mut tensors = BTreeMap::new();
    for (name, tensor) in pickled {
        if tensors.contains_key(name) {
            return Err(format!("{} is there twice", shown(name)));
        }
        let data = entry(&format!("data/{}", tensor.storage)).map(|entry| entry.data.clone());
        let stored = data.ok_or("its storage is missing".into()).and_then(|at| place(tensor, at));
        tensors.insert(name.into(), stored.map_err(|why| format!("{}: {why}", shown(name)))?);
    }
    let entries =
        entries.into_iter().map(|(name, entry)| (name.into(), entry.data, entry.crc)).collect();
    Ok((tensors, entries))
}

/// Where a tensor is in the file, after a check that it lies within its storage.
fn place(tensor: Pickled, data: Range<usize>) -> std::result::Result<Stored, String> {
    let Pickled { dtype, storage_len, offset, shape, strides, .. } = tensor;
    let size = dtype.size();
    if storage_len.checked_mul(size) != Some(data.len()) {
        return Err(format!(
            "a storage of {} bytes, expected {storage_len} elements of {dtype}",
            data.len()
        ));
    }
    let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    // One beyond its last element, if there is one.
    let end = shape.iter().zip(&strides).try_fold(1usize, |end, (size, stride)| {
        end.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
    });
    let end = end.and_then(|end| end.checked_add(offset));
    let fits = count == Some(0) && offset <= storage_len
        || end.is_some_and(|end| end <= storage_len)
            // More elements than there are: some are the same, as a small file's of a huge shape.
            && count.is_some_and(|count| count <= storage_len);
    if !fits {
        return Err(format!(
            "shape {shape:?}, strides {strides:?} and offset {offset} in {storage_len} elements"
        ));
    }
    Ok(Stored { dtype, shape, strides, bytes: data.start + offset * size..data.end })
}

impl Stored {
    /// The elements row by row, of the bytes from the first.
    fn rows<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let size = self.dtype.size();
        let count: usize = self.shape.iter().product();
        let mut expected = 1;
        let is_dense = count == 0
            || self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
                let fits = *size == 1 || *stride == expected;
                expected *= size;
                fits
            });
        if is_dense {
            return Cow::Borrowed(&bytes[..count * size]);
        }
        let mut rows = Vec::with_capacity(count * size);
        let mut place = vec![0; self.shape.len()];
        for _ in 0..count {
            let at: usize = place.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
            rows.extend_from_slice(&bytes[at * size..][..size]);
            for (i, size) in place.iter_mut().zip(&self.shape).rev() {
                *i += 1;
                if *i < *size {
                    break;
                }
                *i = 0;
            }
        }
        Cow::Owned(rows)
    }
}

/// The table of CRC-32 as zip has it, by byte.
fn crc_table() -> [u32; 256] {
    std::array::from_fn(|byte| {
        (0..8).fold(
            byte as u32,
            |crc, _| if crc & 1 == 1 { 0xedb8_8320 ^ crc >> 1 } else { crc >> 1 },
        )
    })
}

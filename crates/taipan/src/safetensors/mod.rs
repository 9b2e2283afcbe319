//! The file format `safetensors`: named tensors.
//!
//! [`save`] and [`load`] are for the parameters of a [`Module`], or any other tensors:
//!
//! ```
//! use taipan::nn::{Initializer, Linear, Module};
//! use taipan::{DType, Device, safetensors};
//!
//! # let path = std::env::temp_dir().join(format!("taipan-doc-{}", std::process::id()));
//! let layer = |seed| Linear::new(2, 3, &mut Initializer::new(seed, DType::F32, &Device::Cpu));
//! let (first, mut second) = (layer(1)?, layer(2)?);
//! safetensors::save(&path, &first.parameters())?;
//! safetensors::load_into(&path, &mut second)?;
//! let bias = |layer: &Linear| layer.parameters()[1].1.read_blocking::<f32>();
//! assert_eq!(bias(&first)?, bias(&second)?);
//! assert_eq!(safetensors::load(&path, &Device::Cpu)?[1].0, "weight");
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), taipan::Error>(())
//! ```
//!
//! The format is
//!
//! ```text
//! u64          the length of the header, n, little-endian
//! n bytes      JSON: {"name": {"dtype": "F32", "shape": […], "data_offsets": [begin, end]}, …}
//! the rest     the tensors' bytes, row-major and little-endian, without gaps
//! ```
//!
//! Reading trusts nothing: a file is accepted only if its tensors cover all of its bytes once,
//! which the crate `safetensors` checks, and if no name and no key of its header is unknown or
//! comes twice, which that crate lets pass. Writing streams from the device, and gives the same
//! bytes for the same tensors.

#[cfg(not(target_family = "wasm"))]
mod files;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

#[cfg(not(target_family = "wasm"))]
pub use self::files::{load, load_into, save};
pub use self::write::{Stored, header_bytes, pytorch_metadata, write, write_values, write_with};
use crate::dtype::with_dtype;
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::nn::Module;
use crate::{DType, Device, Element, MAX_RANK, Tensor};

/// Return [`Error::File`] unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $file:expr, $($why:tt)*) => {
        if !$condition {
            return Err(Error::file(&$file, format!($($why)*)));
        }
    };
}
use ensure;

/// The most a header may take, as in Hugging Face's library: a length beyond it is no length.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a file that was checked as a whole; `B` holds its bytes.
///
/// ```
/// use taipan::safetensors::{Safetensors, Stored, write};
/// use taipan::{Device, Error, Tensor};
///
/// let w = Tensor::new(&[1f32, 2.0, 3.0], &[3], &Device::Cpu)?;
/// let mut bytes = Vec::new();
/// let stored = [Stored { name: "w".into(), shape: vec![3, 1], tensors: vec![&w] }];
/// pollster::block_on(write(&stored, |chunk| {
///     bytes.extend_from_slice(chunk);
///     Ok::<(), Error>(())
/// }))?;
///
/// let file = Safetensors::parse("memory", bytes)?;
/// assert_eq!(file.view("w")?.shape, [3, 1]);
/// assert_eq!(file.tensor("w", &[3, 1])?.read_blocking::<f32>()?, [1.0, 2.0, 3.0]);
/// assert_eq!(
///     file.tensor("w", &[3]).unwrap_err().to_string(),
///     "memory: w is [3, 1], expected [3]"
/// );
/// # Ok::<(), taipan::Error>(())
/// ```
pub struct Safetensors<B> {
    /// Of the file.
    name: String,
    bytes: B,
    /// Where the tensors' bytes begin.
    data: usize,
    header: Header,
}

/// What the header says of a tensor, and nothing that is not known.
#[derive(Deserialize)]
#[serde(remote = "TensorInfo", deny_unknown_fields)]
struct Known {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

#[derive(Deserialize)]
struct Entry(#[serde(with = "Known")] TensorInfo);

/// The header: a name that comes twice is an error, which a map alone would hide.
struct Header {
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Header, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(
                self,
                mut map: M,
            ) -> std::result::Result<Header, M::Error> {
                let (mut tensors, mut metadata) = (BTreeMap::new(), BTreeMap::new());
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        metadata = map.next_value()?;
                        continue;
                    }
                    let Entry(info) = map.next_value()?;
                    if tensors.insert(name.clone(), info).is_some() {
                        return Err(M::Error::custom(format!("{name} is there twice")));
                    }
                }
                Ok(Header { tensors, metadata })
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}

impl<B: AsRef<[u8]>> Safetensors<B> {
    /// The tensors of a file's bytes; errors begin with `name`.
    pub fn parse(name: impl Into<String>, bytes: B) -> Result<Self> {
        let name = name.into();
        let (data, header) = header(&name, bytes.as_ref())?;
        Ok(Safetensors { name, bytes, data, header })
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// The names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// What the header says besides: the text under a key of `__metadata__`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata.get(key).map(String::as_str)
    }

    /// What is stored under a name. That there is nothing is an error.
    pub fn view(&self, name: &str) -> Result<View<'_>> {
        let info = self.header.tensors.get(name);
        let info = info.ok_or_else(|| Error::file(&self.name, format!("{name} is missing")))?;
        let (begin, end) = info.data_offsets;
        Ok(View {
            dtype: dtype(info.dtype).expect("checked with the header"),
            shape: &info.shape,
            bytes: Cow::Borrowed(&self.bytes.as_ref()[self.data + begin..self.data + end]),
        })
    }

    /// A tensor, on the CPU and of the type it is stored in. That it is missing or of another shape
    /// is an error.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let view = self.view(name)?;
        let found = view.shape;
        ensure!(found == shape, self.name, "{name} is {found:?}, expected {shape:?}");
        view.tensor()
    }
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct View<'a> {
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its elements row by row, which need not be aligned.
    pub bytes: Cow<'a, [u8]>,
}

impl View<'_> {
    /// The same on the CPU.
    pub fn tensor(&self) -> Result<Tensor> {
        self.upload(&self.bytes, self.shape, &Device::Cpu)
    }

    /// Rows of it, along the first dimension, on a device, straight from the file.
    pub fn rows(&self, rows: Range<usize>, device: &Device) -> Result<Tensor> {
        let mut shape = self.shape.to_vec();
        let count = shape.first().copied().unwrap_or(0);
        let fits = rows.start <= rows.end && rows.end <= count;
        crate::error::ensure!("rows", fits, "rows {rows:?}, expected some of {count}");
        let size = self.bytes.len() / count.max(1);
        shape[0] = rows.len();
        self.upload(&self.bytes[rows.start * size..rows.end * size], &shape, device)
    }

    /// How many of its values are infinite or NaN: those with all bits of the exponent set.
    pub fn non_finite(&self) -> usize {
        let exponent = match self.dtype {
            DType::F16 => f16::INFINITY.to_bits().into(),
            DType::BF16 => bf16::INFINITY.to_bits().into(),
            DType::F32 => f32::INFINITY.to_bits().into(),
            DType::F64 => f64::INFINITY.to_bits(),
            _ => return 0,
        };
        let is_wrong = |value: &&[u8]| {
            let bits = value.iter().rev().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
            bits & exponent == exponent
        };
        self.bytes.chunks_exact(self.dtype.size()).filter(is_wrong).count()
    }

    fn upload(&self, bytes: &[u8], shape: &[usize], device: &Device) -> Result<Tensor> {
        with_dtype!(self.dtype, T: Element => tensor::<T>(bytes, shape, device))
    }
}

fn tensor<T: Element>(bytes: &[u8], shape: &[usize], device: &Device) -> Result<Tensor> {
    let values = match bytemuck::try_cast_slice(bytes) {
        Ok(values) => Cow::Borrowed(values),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    };
    Tensor::new::<T>(&values, shape, device)
}

/// Where in the file `name` the data begins, and the tensors in it.
fn header(name: &str, bytes: &[u8]) -> Result<(usize, Header)> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        let why = format!("{} bytes found, expected a header's length in 8", bytes.len());
        return Err(Error::file(name, why));
    };
    let (length, most) = (u64::from_le_bytes(*length), MAX_HEADER.min(rest.len() as u64));
    ensure!(length <= most, name, "a header of {length} bytes, expected at most {most}");
    let (json, data) = rest.split_at(length as usize);
    let header: Header = serde_json::from_slice(json)
        .map_err(|error| Error::file(name, format!("the header: {error}")))?;
    for (tensor, TensorInfo { dtype, shape, .. }) in &header.tensors {
        let known = self::dtype(*dtype).map(DType::size);
        ensure!(known.is_some(), name, "{tensor} is of type {dtype}, which is not supported");
        let rank = shape.len();
        let fits = rank <= MAX_RANK;
        ensure!(fits, name, "{tensor} has {rank} dimensions, expected at most {MAX_RANK}");
        // Zeros count as ones, as for a tensor: [0, 2^40, 2^40] is refused whatever the order.
        let size = shape.iter().try_fold(known.unwrap_or(1), |n, d| n.checked_mul(*d.max(&1)));
        ensure!(size.is_some(), name, "the size of {tensor}, {shape:?}, overflows");
    }
    let mut in_order: Vec<_> = header.tensors.clone().into_iter().collect();
    in_order.sort_by_key(|(_, info)| info.data_offsets);
    let metadata = Metadata::new(None, in_order).map_err(|error| Error::file(name, error))?;
    let (found, expected) = (data.len(), metadata.data_len());
    ensure!(found == expected, name, "{found} bytes of tensors found, expected {expected}");
    Ok((8 + json.len(), header))
}

/// The type of tensors here with the name of one of the format.
fn dtype(stored: Dtype) -> Option<DType> {
    let known = [DType::F16, DType::BF16, DType::F32, DType::F64, DType::U32, DType::I64];
    known.into_iter().find(|dtype| name(*dtype) == stored.to_string())
}

/// The name of a type in the format.
fn name(dtype: DType) -> String {
    dtype.to_string().to_ascii_uppercase()
}

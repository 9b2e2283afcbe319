//! The file format `safetensors`: named tensors.
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

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use taipan::{DType, Device, Element, MAX_RANK, Tensor};

use crate::error::ensure;
use crate::{Error, Result};

/// The most a header may take, as in Hugging Face's library: a length beyond it is no length.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a file that was checked as a whole; `B` holds its bytes.
///
/// ```
/// use taipan::{Device, Tensor};
/// use taipan_lm::safetensors::{Safetensors, Stored, write};
///
/// let w = Tensor::new(&[1f32, 2.0, 3.0], &[3], &Device::Cpu)?;
/// let mut bytes = Vec::new();
/// let stored = [Stored { name: "w".into(), shape: vec![3, 1], tensors: vec![&w] }];
/// pollster::block_on(write(&stored, |chunk| {
///     bytes.extend_from_slice(chunk);
///     Ok(())
/// }))?;
///
/// let file = Safetensors::parse("memory", bytes)?;
/// assert_eq!(file.view("w")?.shape, [3, 1]);
/// assert_eq!(file.tensor("w", &[3, 1])?.read_blocking::<f32>()?, [1.0, 2.0, 3.0]);
/// assert_eq!(
///     file.tensor("w", &[3]).unwrap_err().to_string(),
///     "memory: w is [3, 1], expected [3]"
/// );
/// # Ok::<(), taipan_lm::Error>(())
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
    #[cfg(unix)]
    pub(crate) fn bytes(&self) -> &B {
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
        let info = info.ok_or_else(|| Error::invalid(&self.name, format!("{name} is missing")))?;
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

/// Evaluates an expression in which `$T` is the element type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $result:expr) => {
        with_element!($dtype, $T => $result; F16 f16, BF16 bf16, F32 f32, F64 f64, U32 u32, I64 i64)
    };
    ($dtype:expr, $T:ident => $result:expr; $($name:ident $element:ty),+) => {
        match $dtype {
            $(DType::$name => { type $T = $element; $result })+
            other => {
                let why = format!("{other} has no name in the format");
                return Err(Error::invalid("safetensors", why));
            }
        }
    };
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
    pub(crate) fn rows(&self, rows: std::ops::Range<usize>, device: &Device) -> Result<Tensor> {
        let mut shape = self.shape.to_vec();
        let size = self.bytes.len() / shape[0];
        shape[0] = rows.len();
        self.upload(&self.bytes[rows.start * size..rows.end * size], &shape, device)
    }

    /// How many of its values are infinite or NaN: those with all bits of the exponent set.
    pub(crate) fn non_finite(&self) -> usize {
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
        Ok(with_element!(self.dtype, T => tensor::<T>(bytes, shape, device))?)
    }
}

fn tensor<T: Element>(bytes: &[u8], shape: &[usize], device: &Device) -> taipan::Result<Tensor> {
    let values = match bytemuck::try_cast_slice(bytes) {
        Ok(values) => Cow::Borrowed(values),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    };
    Tensor::new::<T>(&values, shape, device)
}

impl Safetensors<Map> {
    /// Map a file into memory: what is not looked at is not read.
    pub fn open(path: &std::path::Path) -> Result<Self> {
        Safetensors::parse(path.display().to_string(), map(path)?)
    }
}

/// The bytes of a file.
#[cfg(not(target_family = "wasm"))]
pub type Map = memmap2::Mmap;
/// The bytes of a file.
#[cfg(target_family = "wasm")]
pub type Map = Vec<u8>;

/// The bytes of a file, which is in memory.
#[cfg(target_family = "wasm")]
pub(crate) fn map(path: &std::path::Path) -> Result<Map> {
    crate::filesystem::read(path).map_err(Error::io(path))
}

/// Map a file into memory. What is not a file, as a pipe that nobody writes to, is an error.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn map(path: &std::path::Path) -> Result<Map> {
    let is_file = std::fs::metadata(path).map_err(Error::io(path))?.is_file();
    ensure!(is_file, path.display(), "not a file");
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    // SAFETY: the bytes may change under a map if another program writes to the file. This
    // crate replaces files, never writes into them; that others do the same is what every
    // reader of mapped files relies on.
    unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))
}

/// Where in the file `name` the data begins, and the tensors in it.
fn header(name: &str, bytes: &[u8]) -> Result<(usize, Header)> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        let why = format!("{} bytes found, expected a header's length in 8", bytes.len());
        return Err(Error::invalid(name, why));
    };
    let (length, most) = (u64::from_le_bytes(*length), MAX_HEADER.min(rest.len() as u64));
    ensure!(length <= most, name, "a header of {length} bytes, expected at most {most}");
    let (json, data) = rest.split_at(length as usize);
    let header: Header = serde_json::from_slice(json)
        .map_err(|error| Error::invalid(name, format!("the header: {error}")))?;
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
    let metadata = Metadata::new(None, in_order).map_err(|error| Error::invalid(name, error))?;
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
    dtype.to_string().to_uppercase()
}

/// A tensor to write: several tensors may be concatenated to one.
pub struct Stored<'a> {
    /// Its name in the file.
    pub name: String,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// Its elements: these tensors, of one type, concatenated along the first dimension.
    pub tensors: Vec<&'a Tensor>,
}

impl Stored<'_> {
    /// The type of its elements, after a check that they agree with the shape.
    fn dtype(&self) -> Result<DType> {
        let len: usize = self.tensors.iter().map(|tensor| tensor.len()).sum();
        let dtype = self.tensors.first().map_or(DType::F32, |tensor| tensor.dtype());
        let found: Vec<_> = self.tensors.iter().map(|t| (t.shape(), t.dtype())).collect();
        let Stored { name, shape, .. } = self;
        let fits = len == shape.iter().product::<usize>()
            && found.iter().all(|(_, found)| *found == dtype);
        ensure!(fits, name, "tensors {found:?}, expected one type and {shape:?}");
        Ok(dtype)
    }
}

/// Write a file of these tensors, in this order, to `out`, chunk by chunk; only one tensor is read
/// from its device at a time.
pub async fn write(tensors: &[Stored<'_>], out: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    write_with(&pytorch(), tensors, out).await
}

/// [`write()`], with texts under keys of `__metadata__`.
pub async fn write_with(
    metadata: &BTreeMap<&str, String>,
    tensors: &[Stored<'_>],
    mut out: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let dtypes = tensors.iter().map(Stored::dtype).collect::<Result<Vec<_>>>()?;
    let described = tensors.iter().zip(dtypes);
    let described = described.map(|(tensor, dtype)| (&*tensor.name, dtype, &*tensor.shape));
    out(&header_bytes(metadata, described))?;
    for tensor in tensors.iter().flat_map(|stored| &stored.tensors) {
        write_values(tensor, &mut out).await?;
    }
    Ok(())
}

/// What other programs want to read in `__metadata__`.
pub(crate) fn pytorch() -> BTreeMap<&'static str, String> {
    BTreeMap::from([("format", "pt".into())])
}

/// Write the elements of a tensor.
pub(crate) async fn write_values(
    tensor: &Tensor,
    mut out: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    with_element!(tensor.dtype(), T => out(bytemuck::cast_slice(&tensor.read::<T>().await?)))
}

/// What stands before the elements of tensors with these names, types and shapes.
pub(crate) fn header_bytes<'a>(
    metadata: &BTreeMap<&str, String>,
    tensors: impl Iterator<Item = (&'a str, DType, &'a [usize])>,
) -> Vec<u8> {
    let metadata = serde_json::to_string(metadata).expect("texts");
    let mut header = format!(r#"{{"__metadata__":{metadata}"#);
    let mut begin = 0;
    for (tensor, dtype, shape) in tensors {
        let end = begin + shape.iter().product::<usize>() * dtype.size();
        let (tensor, dtype) = (serde_json::Value::from(tensor), name(dtype));
        header += &format!(
            r#",{tensor}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        );
        begin = end;
    }
    header.push('}');
    // Behind 8 bytes of length and a multiple of 8 the data is aligned for every type.
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

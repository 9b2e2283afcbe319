//! Files written, chunk by chunk.

use std::collections::BTreeMap;

use super::{ensure, name};
use crate::dtype::with_dtype;
use crate::error::{Error, Result};
use crate::{DType, Tensor};

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
pub async fn write<E: From<Error>>(
    tensors: &[Stored<'_>],
    out: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    write_with(&pytorch_metadata(), tensors, out).await
}

/// [`write()`], with texts under keys of `__metadata__`.
pub async fn write_with<E: From<Error>>(
    metadata: &BTreeMap<&str, String>,
    tensors: &[Stored<'_>],
    mut out: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
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
pub fn pytorch_metadata() -> BTreeMap<&'static str, String> {
    BTreeMap::from([("format", "pt".into())])
}

/// Write the elements of a tensor.
pub async fn write_values<E: From<Error>>(
    tensor: &Tensor,
    mut out: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    with_dtype!(tensor.dtype(), T: Element => {
        out(bytemuck::cast_slice(&tensor.read::<T>().await?))
    })
}

/// What stands before the elements of tensors with these names, types and shapes.
pub fn header_bytes<'a>(
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

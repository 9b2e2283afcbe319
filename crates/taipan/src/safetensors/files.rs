//! Files of named tensors on disk.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use memmap2::Mmap;

use super::{Safetensors, Stored, write};
use crate::Device;
use crate::error::{Error, Result};
use crate::nn::{Module, stored_name};
use crate::tensor::Tensor;

/// Write a file of tensors, by name: of [`Module::parameters`], for example. Parameters that are
/// slices of one tensor, `weight[x]` and `weight[z]`, are stored as `weight`. An existing file is
/// replaced as a whole: the new one is written beside it and renamed.
pub fn save(path: impl AsRef<Path>, tensors: &[(String, &Tensor)]) -> Result<()> {
    let path = path.as_ref();
    let stored: Vec<Stored> = stored(tensors)
        .map(|(name, shape, slices)| {
            let tensors = slices.iter().map(|(_, tensor)| *tensor).collect();
            Stored { name: name.to_owned(), shape, tensors }
        })
        .collect();
    let mut names = HashSet::new();
    if let Some(twice) = stored.iter().find(|stored| !names.insert(&stored.name)) {
        let why = format!("two tensors are {}, expected a name for each", twice.name);
        return Err(Error::file(path.display(), why));
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let failed = |error: std::io::Error| Error::file(path.display(), error);
    let written = File::create(&unfinished).map_err(failed).and_then(|mut file| {
        pollster::block_on(write(&stored, |bytes| file.write_all(bytes).map_err(failed)))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&unfinished, path).map_err(failed)
    });
    if written.is_err() {
        // What is left of the file is of no use; the error that matters is the first.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// All tensors of a file, by name, on a device and of the types they are stored in.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Vec<(String, Tensor)>> {
    let file = Safetensors::open(path.as_ref())?;
    file.names().map(|name| Ok((name.to_owned(), file.view(name)?.tensor()?.to(device)?))).collect()
}

/// Give every parameter of a module its values in a file, converted to its type. A parameter that
/// the file does not have, one of another shape, or a tensor of the file that is no parameter is an
/// error, and changes nothing. What is frozen stays frozen.
pub fn load_into(path: impl AsRef<Path>, module: &mut (impl Module + ?Sized)) -> Result<()> {
    let file = Safetensors::open(path.as_ref())?;
    let subject = path.as_ref().display();
    let mut loaded = Vec::new();
    let parameters = module.parameters();
    for (stored, expected, slices) in stored(&parameters) {
        let whole = file.tensor(stored, &expected)?;
        let mut start = 0;
        for (_, tensor) in slices {
            let values = match slices.len() {
                1 => whole.clone(),
                _ => whole.slice(0, start..start + tensor.shape()[0])?,
            };
            start += tensor.shape().first().copied().unwrap_or(0);
            loaded.push(values.cast(tensor.dtype())?.to(tensor.device())?);
        }
    }
    let known = |name: &&str| parameters.iter().any(|(own, _)| stored_name(own) == *name);
    if let Some(name) = file.names().find(|name| !known(name)) {
        return Err(Error::file(subject, format!("{name} is no parameter of the module")));
    }
    drop(parameters);
    for ((_, parameter), values) in module.parameters_mut().into_iter().zip(loaded) {
        *parameter = if parameter.is_tracked() { values.tracked() } else { values };
    }
    Ok(())
}

/// The tensors of a file in which these are stored: name, shape, and the slices it is made of.
fn stored<'s, 't>(
    tensors: &'s [(String, &'t Tensor)],
) -> impl Iterator<Item = (&'s str, Vec<usize>, &'s [(String, &'t Tensor)])> {
    let same = |(a, _): &(String, &Tensor), (b, _): &(String, &Tensor)| {
        a != b && stored_name(a) == stored_name(b)
    };
    tensors.chunk_by(same).map(|slices| {
        let (name, first) = &slices[0];
        let mut shape = first.shape().to_vec();
        if let Some(rows) = shape.first_mut() {
            *rows = slices.iter().filter_map(|(_, tensor)| tensor.shape().first()).sum();
        }
        (stored_name(name), shape, slices)
    })
}

impl Safetensors<Mmap> {
    /// Map a file into memory: what is not looked at is not read.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::file(path.display(), error);
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::file(path.display(), "not a file"));
        }
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the bytes may change under a map if another program writes to the file. `save`
        // replaces files, never writes into them; that others do the same is what every reader of
        // mapped files relies on.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Safetensors::parse(path.display().to_string(), map)
    }
}

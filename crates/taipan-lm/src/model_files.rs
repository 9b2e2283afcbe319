//! The files of a model on disk, whoever wrote them.
//!
//! ```text
//! config.json                     Hugging Face's, or the original code's
//! model.safetensors               the tensors; or
//! model.safetensors.index.json    the names of the files that have them; or
//! pytorch_model.bin               the same, written by torch.save; or
//! pytorch_model.bin.index.json
//! tokenizer.json …                if there is one
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use taipan::{DType, Device, Tensor};

use crate::checkpoint::checkpoints;
use crate::config::HEAD;
use crate::error::ensure;
use crate::filesystem as fs;
use crate::model::ParameterSpec;
use crate::safetensors::{self, Map, Safetensors, View};
#[cfg(not(target_family = "wasm"))]
use crate::torch::TorchFile;
use crate::{Config, Error, LanguageModel, Layout, Result, TensorSpec};

pub(crate) const CONFIG: &str = "config.json";

/// The files with a model's tensors, the preferred first.
const WEIGHTS: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

/// A model on disk, of which the names and shapes of all tensors were checked. Tensors are read
/// when they are asked for.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::{LanguageModel, ModelFiles, Preset, Tokenizer};
///
/// # let directory = format!("taipan-model-files-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(directory);
/// let model = LanguageModel::new(&Preset::Tiny.config(256), DType::F32, 1, &Device::Cpu)?;
/// model.save_pretrained(&directory, &Tokenizer::bytes())?;
/// let files = ModelFiles::open(&directory)?;
/// assert_eq!((files.config(), files.dtype()), (model.config(), DType::F32));
/// let half = files.load(DType::BF16, &Device::Cpu)?;
/// # assert_eq!(half.dtype(), DType::BF16);
/// # std::fs::remove_dir_all(&directory).unwrap();
/// # Ok::<(), taipan_lm::Error>(())
/// ```
pub struct ModelFiles {
    /// As errors name it.
    path: PathBuf,
    directory: PathBuf,
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    pub(crate) config_json: String,
    config: Config,
    layout: Layout,
    files: Vec<File>,
    /// The index of the file of each tensor, by its name in Hugging Face's layout.
    tensors: BTreeMap<String, usize>,
}

/// A file with tensors.
struct File {
    path: PathBuf,
    tensors: Tensors,
}

enum Tensors {
    Safetensors(Safetensors<Map>),
    #[cfg(not(target_family = "wasm"))]
    Torch(TorchFile<Map>),
}

impl ModelFiles {
    /// Open the model of a directory, or a file of its tensors or their index, which has its
    /// `config.json` beside it. In the directory of a run that is not finished it is the last
    /// checkpoint.
    ///
    /// Names may be Hugging Face's or those of the original code. A tied model may have a head, if
    /// it is the same as the embeddings. What is missing, unknown or of another shape is an error
    /// that lists all of it.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFiles> {
        let mut path = path.as_ref().to_owned();
        fs::metadata(&path).map_err(Error::io(&path))?;
        if fs::is_dir(&path)
            && !fs::is_there(&path.join(CONFIG))
            && let Some((_, last)) = checkpoints(&path)?.pop()
        {
            path = last;
        }
        let directory = if fs::is_dir(&path) { path.clone() } else { beside(&path, "") };
        let config_path = directory.join(CONFIG);
        let config_json = crate::config::read_text(&config_path)?;
        let (config, layout) = Config::read(&config_json)
            .map_err(|error| Error::invalid(config_path.display(), error))?;
        let weights = match fs::is_dir(&path) {
            false => path.clone(),
            true => {
                let names = WEIGHTS.map(|name| directory.join(name));
                let found = names.into_iter().find(|path| fs::is_there(path));
                let expected = WEIGHTS.join(", ");
                found.ok_or_else(|| {
                    Error::invalid(path.display(), format!("none of {expected} is in it"))
                })?
            }
        };
        let files = match weights.extension().is_some_and(|extension| extension == "json") {
            true => open_index(&weights)?,
            false => vec![File::open(weights)?],
        };
        let mut model = ModelFiles {
            path,
            directory,
            config_json,
            config,
            layout,
            files,
            tensors: BTreeMap::new(),
        };
        model.tensors = model.index()?;
        model.check()?;
        Ok(model)
    }

    /// The shape of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whose `config.json` it has.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The files with its tensors.
    pub fn weight_files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// The type that its embeddings are stored in.
    pub fn dtype(&self) -> DType {
        self.stored(&self.config.embeddings()).expect("checked when it was opened").0
    }

    /// The tensors of the model, each with the type that it is stored in.
    pub fn tensors(&self) -> Vec<(TensorSpec, DType)> {
        let stored = |tensor: TensorSpec| {
            let (dtype, _) = self.stored(&tensor.name).expect("checked when it was opened");
            (tensor, dtype)
        };
        self.config.tensors().into_iter().map(stored).collect()
    }

    /// Read everything: an error unless all values are finite, and every entry of a file of torch
    /// has its checksum. A safetensors file has none.
    pub fn verify(&self) -> Result<()> {
        #[cfg(not(target_family = "wasm"))]
        for file in &self.files {
            if let Tensors::Torch(torch) = &file.tensors {
                torch.verify()?;
            }
        }
        let mut wrong = Vec::new();
        for (TensorSpec { name, .. }, _) in self.tensors() {
            let view = self.view(&name)?;
            match view.non_finite() {
                0 => {}
                count => wrong.push(format!("{name} ({count})")),
            }
            self.release(&view);
        }
        let values = list("not finite", &wrong);
        ensure!(values.is_none(), self.path.display(), "{}", values.unwrap_or_default());
        Ok(())
    }

    /// The model in a dtype, on a device. Tensors are read, converted and moved one after the
    /// other; the host holds one at a time.
    pub fn load(&self, dtype: DType, device: &Device) -> Result<LanguageModel> {
        LanguageModel::build(&self.config, dtype, device, &mut |spec| {
            self.values(spec, dtype, device)
        })
    }

    /// The values of a parameter: on the device already, if they need no conversion.
    fn values(&self, spec: &ParameterSpec, dtype: DType, device: &Device) -> Result<Tensor> {
        let TensorSpec { name, role, .. } = spec.stored;
        let file = self.file(name)?;
        let view = file.view(self.file_name(name, file))?;
        let (rows, expected) = (spec.rows.clone(), role.dtype(dtype));
        let values = match view.dtype == expected {
            true => view.rows(rows, device)?,
            false => view.rows(rows, &Device::Cpu)?.cast(expected)?,
        };
        file.release(&view);
        Ok(values)
    }

    /// A tensor, by its name in Hugging Face's layout.
    pub(crate) fn view(&self, name: &str) -> Result<View<'_>> {
        let file = self.file(name)?;
        file.view(self.file_name(name, file))
    }

    /// Let the system take back the memory of a tensor's bytes, which are read again if need be.
    pub(crate) fn release(&self, view: &View) {
        self.files.iter().for_each(|file| file.release(view));
    }

    fn file(&self, name: &str) -> Result<&File> {
        let index = self.tensors.get(name);
        let missing = || Error::invalid(self.path.display(), format!("{name} is missing"));
        Ok(&self.files[*index.ok_or_else(missing)?])
    }

    /// What a file calls a tensor.
    fn file_name<'a>(&self, name: &'a str, file: &File) -> &'a str {
        let original = Layout::Original.name(name);
        if file.spec(original).is_ok() { original } else { name }
    }

    /// The type and the shape of a tensor, by its name in Hugging Face's layout.
    fn stored(&self, name: &str) -> Result<(DType, &[usize])> {
        let file = self.file(name)?;
        file.spec(self.file_name(name, file))
    }

    /// The file of each tensor.
    fn index(&self) -> Result<BTreeMap<String, usize>> {
        let (embeddings, mut tensors) = (self.config.embeddings(), BTreeMap::new());
        for (i, file) in self.files.iter().enumerate() {
            for name in file.names() {
                let is_original = name == Layout::Original.name(&embeddings);
                let known = if is_original { &embeddings } else { name };
                match tensors.entry(known.to_owned()) {
                    Entry::Vacant(entry) => entry.insert(i),
                    Entry::Occupied(_) => {
                        let why = format!("{} is there twice", shown(known));
                        return Err(Error::invalid(self.path.display(), why));
                    }
                };
            }
        }
        Ok(tensors)
    }

    /// An error that lists every tensor that is missing, unknown or of another shape; or one if a
    /// tied head is not the embeddings.
    fn check(&self) -> Result<()> {
        let mut unknown: BTreeSet<&str> = self.tensors.keys().map(String::as_str).collect();
        if self.config.tie_word_embeddings {
            unknown.remove(HEAD);
        }
        let (mut missing, mut wrong) = (Vec::new(), Vec::new());
        for TensorSpec { name, shape, .. } in self.config.tensors() {
            unknown.remove(name.as_str());
            match self.stored(&name) {
                Err(_) => missing.push(format!("{name} {shape:?}")),
                Ok((dtype, found)) if found != shape || !dtype.is_float() => {
                    wrong.push(format!(
                        "{name} is {found:?} in {dtype}, expected {shape:?} in a float"
                    ));
                }
                Ok(_) => {}
            }
        }
        let unknown = unknown.into_iter().map(|name| {
            let (dtype, shape) = self.stored(name)?;
            Ok(format!("{} {shape:?} in {dtype}", shown(name)))
        });
        let unknown = unknown.collect::<Result<Vec<_>>>()?;
        let lists = [
            ("missing", missing),
            ("not of the model", unknown),
            ("of another shape or type", wrong),
        ];
        let lists: Vec<String> =
            lists.into_iter().filter_map(|(what, names)| list(what, &names)).collect();
        ensure!(lists.is_empty(), self.path.display(), "{}", lists.join("; "));
        if self.config.tie_word_embeddings && self.tensors.contains_key(HEAD) {
            let name = self.config.embeddings();
            let (head, embeddings) = (self.view(HEAD)?, self.view(&name)?);
            // Two names of the same bytes, as torch stores them, need not be read.
            let same = std::ptr::eq(&*head.bytes, &*embeddings.bytes) || head == embeddings;
            self.release(&head);
            ensure!(same, self.path.display(), "{HEAD} is not {name}, to which it is tied");
        }
        Ok(())
    }
}

/// `2 tensors are missing: a [3], b [4, 5]`; of many, the first few.
fn list(what: &str, names: &[String]) -> Option<String> {
    const SHOWN: usize = 8;
    let (first, rest) = names.split_at(names.len().min(SHOWN));
    let count = match names.len() {
        0 => return None,
        1 => "1 tensor is".into(),
        many => format!("{many} tensors are"),
    };
    let more = if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
    Some(format!("{count} {what}: {}{more}", first.join(", ")))
}

/// The beginning of a long name.
fn shown(name: &str) -> String {
    match name.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

impl File {
    fn open(path: PathBuf) -> Result<File> {
        let tensors = match path.extension().is_some_and(|extension| extension == "safetensors") {
            true => Tensors::Safetensors(safetensors::open(&path)?),
            #[cfg(not(target_family = "wasm"))]
            false => Tensors::Torch(TorchFile::open(&path)?),
            #[cfg(target_family = "wasm")]
            false => {
                let why = "a file of torch, expected safetensors in a browser";
                return Err(Error::invalid(path.display(), why));
            }
        };
        Ok(File { path, tensors })
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match &self.tensors {
            Tensors::Safetensors(file) => Box::new(file.names()),
            #[cfg(not(target_family = "wasm"))]
            Tensors::Torch(file) => Box::new(file.names()),
        }
    }

    fn spec(&self, name: &str) -> Result<(DType, &[usize])> {
        match &self.tensors {
            Tensors::Safetensors(file) => {
                file.view(name).map(|view| (view.dtype, view.shape)).map_err(Error::from)
            }
            #[cfg(not(target_family = "wasm"))]
            Tensors::Torch(file) => file.spec(name),
        }
    }

    fn view(&self, name: &str) -> Result<View<'_>> {
        match &self.tensors {
            Tensors::Safetensors(file) => Ok(file.view(name)?),
            #[cfg(not(target_family = "wasm"))]
            Tensors::Torch(file) => file.view(name),
        }
    }

    #[cfg(unix)]
    fn release(&self, view: &View) {
        let map = match &self.tensors {
            Tensors::Safetensors(file) => file.bytes(),
            Tensors::Torch(file) => file.bytes(),
        };
        let offset = (view.bytes.as_ptr() as usize).wrapping_sub(map.as_ptr() as usize);
        if offset < map.len() && view.bytes.len() <= map.len() - offset {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is of a file, shared and read-only: what is read again has the same
            // bytes. That the system refuses costs memory, nothing else.
            let _ = unsafe { map.unchecked_advise_range(advice, offset, view.bytes.len()) };
        }
    }

    #[cfg(not(unix))]
    fn release(&self, _view: &View) {}
}

/// `model.safetensors.index.json` or `pytorch_model.bin.index.json`
#[derive(Deserialize)]
struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// The files that an index names, each of which must have the tensors that it says.
fn open_index(path: &Path) -> Result<Vec<File>> {
    let text = crate::config::read_text(path)?;
    let index: Index =
        serde_json::from_str(&text).map_err(|error| Error::invalid(path.display(), error))?;
    let mut files = BTreeMap::new();
    for (tensor, name) in &index.weight_map {
        let is_beside = Path::new(name).file_name() == Some(name.as_ref());
        ensure!(is_beside, path.display(), "{name:?} found, expected a file beside it");
        let file = match files.entry(name) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(File::open(beside(path, name))?),
        };
        file.spec(tensor)?;
    }
    ensure!(!files.is_empty(), path.display(), "no tensor in it");
    Ok(files.into_values().collect())
}

/// The path of a file beside another.
fn beside(path: &Path, name: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(name)
}

//! A model on a device.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use taipan::gpu::{Capabilities, Gpu, adapters};
use taipan::{DType, Device};
use taipan_lm::data::{Sources, default_stories};
use taipan_lm::{
    Config, Error, LanguageModel, ModelFiles, Preset, Scorer, Tokenizer, Trainer, filesystem,
};
use wasm_bindgen::prelude::*;

use crate::failure::{Result, parse};
use crate::talk::Talk;

/// Where the files of a model are while it is loaded.
const MODEL: &str = "model";

/// A device and, once it is [created](Session::create) or [loaded](Session::load), a model on it.
#[wasm_bindgen]
pub struct Session {
    pub(crate) device: Device,
    /// Why the device is the CPU though a GPU was asked for.
    why: Option<String>,
    pub(crate) model: Option<Model>,
    /// Documents that are collected for the next call.
    texts: Vec<(String, String)>,
    pub(crate) talk: Option<Talk>,
    /// The weights before an adaptation, and their tokenizer.
    pub(crate) before: Option<(LanguageModel, Tokenizer)>,
}

pub(crate) struct Model {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) weights: Weights,
    /// Of the weights as they are, once somebody has asked.
    fingerprint: Option<String>,
}

/// A model, or what trains it.
pub(crate) enum Weights {
    Fixed(LanguageModel),
    Trained(Box<Trainer>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Create {
    config: Map<String, Value>,
    seed: u64,
    dtype: Type,
    tokenizer: Vocabulary,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Vocabulary {
    Bytes,
    /// This many tokens, from the texts that were [added](Session::add_text).
    Bpe(usize),
    /// The text of a `tokenizer.json`.
    Json(String),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    F32,
    F16,
}

impl From<Type> for DType {
    fn from(dtype: Type) -> DType {
        match dtype {
            Type::F32 => DType::F32,
            Type::F16 => DType::F16,
        }
    }
}

impl Model {
    pub(crate) fn new(lm: LanguageModel, tokenizer: Tokenizer) -> Model {
        Model { tokenizer, weights: Weights::Fixed(lm), fingerprint: None }
    }

    pub(crate) fn trained(trainer: Trainer) -> Model {
        let tokenizer = trainer.tokenizer().clone();
        let weights = Weights::Trained(Box::new(trainer));
        Model { tokenizer, weights, fingerprint: None }
    }

    pub(crate) fn lm(&self) -> &LanguageModel {
        match &self.weights {
            Weights::Fixed(lm) => lm,
            Weights::Trained(trainer) => trainer.model(),
        }
    }

    /// What trains it, which changes its weights.
    pub(crate) fn trainer(&mut self) -> Result<&mut Trainer> {
        self.fingerprint = None;
        match &mut self.weights {
            Weights::Trained(trainer) => Ok(trainer),
            Weights::Fixed(_) => Err(Error::invalid("train", "not begun yet").into()),
        }
    }

    pub(crate) fn into_lm(self) -> LanguageModel {
        match self.weights {
            Weights::Fixed(lm) => lm,
            Weights::Trained(trainer) => trainer.into_model(),
        }
    }

    pub(crate) async fn fingerprint(&mut self) -> Result<String> {
        if self.fingerprint.is_none() {
            self.fingerprint = Some(self.lm().fingerprint().await?);
        }
        Ok(self.fingerprint.clone().unwrap_or_default())
    }
}

#[wasm_bindgen]
impl Session {
    /// A session on `"webgpu"`, `"cpu"`, or `"auto"`: a GPU if the browser has one.
    pub async fn open(kind: &str) -> std::result::Result<Session, JsValue> {
        let (device, why) = open_device(kind).await?;
        Ok(Session { device, why, model: None, texts: Vec::new(), talk: None, before: None })
    }

    /// The device, as `DeviceInfo` of the package.
    pub fn device(&self) -> String {
        match &self.device {
            Device::Gpu(gpu) => {
                let (limits, info) = (gpu.limits(), gpu.info());
                json!({
                    "kind": "webgpu",
                    "name": match info.name.as_str() { "" => info.driver_info.as_str(), name => name },
                    "f16": self.device.supports(DType::F16),
                    "limits": {
                        "maxBufferSize": limits.max_buffer_size,
                        "maxStorageBufferBindingSize": limits.max_storage_buffer_binding_size,
                        "maxComputeWorkgroupStorageSize": limits.max_compute_workgroup_storage_size,
                        "maxStorageBuffersPerShaderStage":
                            limits.max_storage_buffers_per_shader_stage,
                    },
                })
            }
            _ => json!({
                "kind": "cpu", "name": self.device.describe(), "limits": {},
                "f16": self.device.supports(DType::F16),
                "why": self.why,
            }),
        }
        .to_string()
    }

    /// Pipelines compiled and dispatches so far, and the memory of tensors in bytes.
    pub fn work(&self) -> String {
        match &self.device {
            Device::Gpu(gpu) => {
                let (work, memory) = (gpu.work(), gpu.memory());
                json!({
                    "pipelines": work.pipelines, "launches": work.launches,
                    "submissions": work.submissions, "bytes": memory.peak,
                })
            }
            _ => json!({ "pipelines": 0, "launches": 0, "submissions": 0, "bytes": 0 }),
        }
        .to_string()
    }

    /// A document for the next call that takes text.
    pub fn add_text(&mut self, name: String, text: String) {
        self.texts.push((name, text));
    }

    pub(crate) fn take_texts(&mut self) -> Sources {
        Sources::texts(std::mem::take(&mut self.texts))
    }

    /// Make a model with random weights.
    pub fn create(&mut self, options: &str) -> std::result::Result<(), JsValue> {
        Ok(self.create_model(options)?)
    }

    /// Load the model of the files in the directory `model`, which are removed.
    pub fn load(&mut self, dtype: Option<String>) -> std::result::Result<(), JsValue> {
        Ok(self.load_model(dtype)?)
    }

    /// `{config, parameters, dtype, vocabSize}` of the model.
    pub fn describe(&self) -> std::result::Result<String, JsValue> {
        let model = self.model()?;
        let (lm, tokenizer) = (model.lm(), &model.tokenizer);
        let config = lm.config().to_json(lm.dtype(), tokenizer.eos_token_id());
        let config: Value = parse("config", &config)?;
        Ok(json!({
            "config": config,
            "parameters": lm.config().parameters(),
            "dtype": lm.dtype().to_string(),
            "vocabSize": tokenizer.vocab_size(),
        })
        .to_string())
    }

    /// The tokens of a text: `[{id, text}]`.
    pub fn tokenize(&self, text: &str) -> std::result::Result<String, JsValue> {
        let ids = self.model()?.tokenizer.encode(text).map_err(crate::failure::Failure::from)?;
        Ok(self.tokens(&ids)?.to_string())
    }

    /// How well the model predicts the texts that were added.
    pub async fn evaluate(&mut self) -> std::result::Result<String, JsValue> {
        Ok(self.score().await?)
    }

    /// Write the files of the model to the directory `saved`.
    pub async fn save(&mut self) -> std::result::Result<(), JsValue> {
        let model = self.model()?;
        Ok(save(model).await?)
    }
}

async fn save(model: &Model) -> Result<()> {
    let files = model.lm().to_files(&model.tokenizer).await?;
    let directory = Path::new("saved");
    filesystem::create_dir_all(directory).map_err(Error::io(directory))?;
    for (name, bytes) in files {
        let path = directory.join(name);
        filesystem::write(&path, bytes).map_err(Error::io(&path))?;
    }
    Ok(())
}

impl Session {
    pub(crate) fn model(&self) -> Result<&Model> {
        self.model.as_ref().ok_or_else(|| Error::invalid("model", "there is none yet").into())
    }

    pub(crate) fn model_mut(&mut self) -> Result<&mut Model> {
        self.model.as_mut().ok_or_else(|| Error::invalid("model", "there is none yet").into())
    }

    fn create_model(&mut self, options: &str) -> Result<()> {
        let Create { config, seed, dtype, tokenizer } = parse("create", options)?;
        let sources = self.take_texts();
        let tokenizer = match tokenizer {
            Vocabulary::Bytes => Tokenizer::bytes(),
            Vocabulary::Bpe(size) => Tokenizer::train_bpe(&sources, size)?,
            Vocabulary::Json(text) => Tokenizer::from_json(&text)?,
        };
        let config = config_of(config, tokenizer.vocab_size())?;
        let lm = LanguageModel::new(&config, self.computing(dtype.into())?, seed, &self.device)?;
        self.model = Some(Model::new(lm, tokenizer));
        Ok(())
    }

    fn load_model(&mut self, dtype: Option<String>) -> Result<()> {
        let files = ModelFiles::open(MODEL)?;
        let dtype = match dtype.as_deref() {
            None if self.device.supports(files.dtype()) => files.dtype(),
            None | Some("f32") => DType::F32,
            Some("f16") => DType::F16,
            Some(other) => {
                let why = format!("{other:?}, expected \"f32\" or \"f16\"");
                return Err(Error::invalid("dtype", why).into());
            }
        };
        let lm = files.load(self.computing(dtype)?, &self.device)?;
        let tokenizer = Tokenizer::from_file(Path::new(MODEL).join("tokenizer.json"))?;
        filesystem::remove_dir_all(MODEL).map_err(Error::io(Path::new(MODEL)))?;
        self.model = Some(Model::new(lm, tokenizer));
        Ok(())
    }

    /// The type, if the device computes in it.
    fn computing(&self, dtype: DType) -> Result<DType> {
        if self.device.supports(dtype) {
            return Ok(dtype);
        }
        let why = format!("{dtype} on {}, expected f32", self.device.describe());
        Err(Error::invalid("dtype", why).into())
    }

    async fn score(&mut self) -> Result<String> {
        let sources = self.take_texts();
        let model = self.model()?;
        let mut scorer = Scorer::new(model.lm());
        for document in 0..sources.len() {
            scorer.context(&Vec::from_iter(model.tokenizer.eos_token_id())).await?;
            for chunk in sources.encoded(document, &model.tokenizer)? {
                let (ids, bytes) = chunk?;
                scorer.push(&ids, &bytes).await?;
            }
        }
        let score = scorer.finish().await?;
        if score.tokens == 0 {
            return Err(Error::invalid("evaluate", "no tokens, expected some").into());
        }
        Ok(json!({
            "loss": score.loss(), "perplexity": score.perplexity(),
            "bitsPerByte": score.bits_per_byte(), "tokens": score.tokens,
        })
        .to_string())
    }
}

/// A configuration: the keys that are given, of a preset or of the smallest one.
fn config_of(mut keys: Map<String, Value>, vocab_size: usize) -> Result<Config> {
    let preset = match keys.remove("preset") {
        None => Preset::Tiny,
        Some(Value::String(name)) => name.parse()?,
        Some(other) => {
            return Err(Error::invalid("preset", format!("{other}, expected a name")).into());
        }
    };
    let base = preset.config(vocab_size).to_json(DType::F32, None);
    let mut config: Map<String, Value> = parse("config", &base)?;
    if keys.contains_key("hidden_size") {
        // The ranks and sizes that follow from it.
        for follows in ["intermediate_size", "time_step_rank"] {
            config.remove(follows);
        }
        config.insert("time_step_rank".into(), "auto".into());
    }
    config.extend(keys);
    Ok(Config::from_json(&Value::Object(config).to_string())?)
}

async fn open_device(kind: &str) -> Result<(Device, Option<String>)> {
    let opened = match kind {
        "cpu" => return Ok((Device::Cpu, None)),
        "auto" | "webgpu" => match adapters().await.first() {
            Some(adapter) => Gpu::open(adapter, Capabilities::Full).await.map_err(Error::from),
            None => Err(Error::invalid("WebGPU", "this browser gives no adapter")),
        },
        other => {
            let why = format!("{other:?}, expected \"auto\", \"webgpu\" or \"cpu\"");
            return Err(Error::invalid("device", why).into());
        }
    };
    match opened {
        Ok(gpu) => Ok((Device::Gpu(gpu), None)),
        Err(error) if kind == "auto" => Ok((Device::Cpu, Some(error.to_string()))),
        Err(error) => Err(error.into()),
    }
}

/// The presets that fit into a browser, as `Taipan.presets` of the package returns them.
#[wasm_bindgen]
pub fn presets() -> std::result::Result<String, JsValue> {
    let preset = |preset: &Preset| {
        let config = preset.config(256);
        let json: Value = parse("config", &config.to_json(DType::F32, None))?;
        let parameters = config.parameters();
        Ok(json!({ "name": preset.to_string(), "config": json, "parameters": parameters }))
    };
    let all = Preset::ALL.iter().filter(|preset| preset.config(256).parameters() < 1 << 28);
    Ok(Value::from(all.map(preset).collect::<Result<Vec<_>>>()?).to_string())
}

/// The program's default training text, each a document.
#[wasm_bindgen]
pub fn stories() -> Vec<String> {
    default_stories().collect()
}

/// The bytes that training such a model takes, and its parameters.
#[wasm_bindgen]
pub fn estimate(options: &str) -> std::result::Result<String, JsValue> {
    Ok(crate::train::estimate(options)?)
}

pub(crate) fn estimate_config(keys: Map<String, Value>) -> Result<Config> {
    config_of(keys, 256)
}

/// Write a file of the session's file system, and the directories it is in.
#[wasm_bindgen]
pub fn write_file(path: &str, bytes: &[u8]) -> std::result::Result<(), JsValue> {
    let path = Path::new(path);
    let directory = path.parent().unwrap_or(Path::new(""));
    let written = filesystem::create_dir_all(directory)
        .and_then(|()| filesystem::write(path, bytes))
        .map_err(Error::io(path))
        .map_err(crate::failure::Failure::from);
    Ok(written?)
}

/// Read a file of the session's file system.
#[wasm_bindgen]
pub fn read_file(path: &str) -> std::result::Result<Vec<u8>, JsValue> {
    let path = Path::new(path);
    let read = filesystem::read(path).map_err(Error::io(path));
    Ok(read.map_err(crate::failure::Failure::from)?)
}

/// The files below a directory, as JSON, sorted; those of none if it is not there.
#[wasm_bindgen]
pub fn list_files(directory: &str) -> String {
    let mut files = Vec::new();
    let mut open = vec![Path::new(directory).to_owned()];
    while let Some(path) = open.pop() {
        match filesystem::read_dir(&path) {
            Ok(entries) => open.extend(entries.flatten().map(|entry| entry.path())),
            Err(_) if filesystem::metadata(&path).is_ok() => files.push(path.display().to_string()),
            Err(_) => {}
        }
    }
    files.sort();
    json!(files).to_string()
}

/// Remove a directory, if it is there.
#[wasm_bindgen]
pub fn remove_files(directory: &str) {
    // What is not there is removed.
    let _ = filesystem::remove_dir_all(directory);
}

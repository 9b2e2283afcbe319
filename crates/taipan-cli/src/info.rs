//! `taipan info`: what a model, a checkpoint or a run is, with a check of every file.

use std::path::Path;

use serde_json::Value;
use taipan::DType;
use taipan_lm::data::Dataset;
use taipan_lm::{
    AdapterFiles, AttentionConfig, CheckpointInfo, Config, LayerKind, Layout, Mamba3Config, Memory,
    ModelFiles, Recipe, Ssm, TensorSpec, Tokenizer, checkpoints, verify_checkpoint,
};

use crate::train::DATA;
use crate::{Failure, bytes, hub};

/// Show a `config.json`, a file of tensors, or the directory of a model, a checkpoint or a run.
/// Damaged files are an error, after everything else was shown.
pub fn info(path: &Path) -> Result<(), Failure> {
    let path = &hub::locate(path)?;
    let is_directory = path.is_dir();
    let found = if is_directory { checkpoints(path)? } else { Vec::new() };
    let mut report = Report::default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_adapter = AdapterFiles::exists(path) && !path.join("config.json").exists();
    let shown = match name.ends_with(".json") && !name.ends_with(".index.json") {
        _ if is_adapter => report.adapter(path),
        true => report.config(path),
        false => report.model(path),
    };
    report.damaged.extend(shown.err().map(|error| error.to_string()));
    if is_directory && path.join("trainer.json").exists() {
        report.checkpoint(path);
    }
    let data = path.join(DATA);
    let dataset = if Dataset::exists(&data) { report.dataset(&data) } else { None };
    for (_, path) in &found {
        if let (Some(info), Some(dataset)) = (report.checkpoint(path), &dataset)
            && info.data != dataset.fingerprint()
        {
            let why = format!("{}: it was trained on other data", path.display());
            report.damaged.push(format!("{why} than there is in {}", data.display()));
        }
    }
    crate::print(&report.text)?;
    if report.damaged.is_empty() {
        return Ok(());
    }
    Err(report.damaged.join("\nerror: ").into())
}

/// What is shown, and why files are damaged.
#[derive(Default)]
struct Report {
    text: String,
    damaged: Vec<String>,
}

impl Report {
    /// A model of which there is no more than its shape.
    fn config(&mut self, path: &Path) -> taipan_lm::Result<()> {
        let config = Config::from_file(path)?;
        let dtype = stored_dtype(path).unwrap_or(DType::F32);
        let size = bytes(config.parameters() as u64 * dtype.size() as u64);
        self.shape(&config, &format!("{size} in {dtype}"));
        self.memory(&config, dtype);
        Ok(())
    }

    fn model(&mut self, path: &Path) -> taipan_lm::Result<()> {
        let files = ModelFiles::open(path)?;
        let (config, tensors) = (files.config(), files.tensors());
        let size: u64 = tensors.iter().map(size_of).sum();
        let layout = match files.layout() {
            Layout::HuggingFace => "Hugging Face's layout",
            Layout::Original => "the original layout",
        };
        self.shape(config, &format!("{} in {}, {layout}", bytes(size), files.dtype()));
        self.parameters(&tensors);
        self.memory(config, files.dtype());
        self.line(files.directory(), files.verify(), |()| {
            format!("{} tensors with the expected names and shapes, all finite", tensors.len())
        });
        for path in files.weight_files() {
            let size = path.metadata().map_err(taipan_lm::Error::io(path))?.len();
            self.text += &format!("{}: {}\n", path.display(), bytes(size));
        }
        let tokenizer = files.directory().join("tokenizer.json");
        if tokenizer.exists() {
            let found = Tokenizer::from_file(&tokenizer);
            let size = self.line(&tokenizer, found, |tokenizer| {
                let eos = tokenizer.eos_token_id();
                let eos = eos.map_or("no eos token".into(), |id| format!("eos token {id}"));
                format!("{} tokens, {eos}", tokenizer.vocab_size())
            });
            let (size, rows) =
                (size.map_or(0, |tokenizer| tokenizer.vocab_size()), config.vocab_size);
            if size > rows {
                let why = format!("{size} tokens, expected at most the model's, {rows}");
                self.damaged.push(format!("{}: {why}", tokenizer.display()));
            }
        }
        Ok(())
    }

    /// An adapter, in one line for each kind of module.
    fn adapter(&mut self, path: &Path) -> taipan_lm::Result<()> {
        let files = AdapterFiles::open(path)?;
        let base = files.base().unwrap_or("a model without a name");
        self.text += &format!("LoRA, {} parameters, for {base}\n\n", files.parameters());
        let mut rows: Vec<(String, usize, usize)> = Vec::new();
        for (module, rank) in files.modules() {
            let name = any_layer(module);
            match rows.iter_mut().find(|row| row.0 == name && row.1 == rank) {
                Some((.., count)) => *count += 1,
                None => rows.push((name, rank, 1)),
            }
        }
        for (name, rank, count) in rows {
            self.text += &format!("{name}  {count} × rank {rank}\n");
        }
        self.text.push('\n');
        Ok(())
    }

    /// The shape of a model.
    fn shape(&mut self, config: &Config, size: &str) {
        let parameters = match config.parameters() {
            few @ ..100_000 => few.to_string(),
            many => format!("{:.1} M", many as f64 / 1e6),
        };
        let Config { layers, hidden_size, state_size, .. } = config;
        let vocab_size = config.vocab_size;
        let mixer = match config.ssm {
            Ssm::Mamba { time_step_rank, norm_eps } => {
                let normed = if norm_eps.is_some() { " with norms of Δ, B and C" } else { "" };
                format!("Δ of rank {time_step_rank}{normed}")
            }
            Ssm::Mamba2 { head_dim, n_groups, .. } => {
                let groups =
                    if n_groups == 1 { String::new() } else { format!(" in {n_groups} groups") };
                format!("{} heads of {head_dim}{groups}", config.inner_size() / head_dim)
            }
            Ssm::Mamba3(Mamba3Config { head_dim, n_groups, mimo_rank, .. }) => {
                let groups =
                    if n_groups == 1 { String::new() } else { format!(" in {n_groups} groups") };
                let ranks = mimo_rank.map_or("SISO".into(), |rank| format!("MIMO of rank {rank}"));
                format!("{} heads of {head_dim}{groups}, {ranks}", config.inner_size() / head_dim)
            }
        };
        let convolution = match config.ssm {
            Ssm::Mamba3(_) => String::new(),
            _ => format!(", convolution kernel {}", config.conv_kernel),
        };
        let head = if config.tie_word_embeddings { "tied" } else { "untied" };
        let biases = match (config.use_bias, config.use_conv_bias) {
            (false, true) => "",
            (true, true) => ", with biases",
            (false, false) => ", without a bias of the convolution",
            (true, false) => ", with biases but that of the convolution",
        };
        let more = hybrid(config);
        self.text += &format!(
            "{}, {parameters} parameters, {size}\n\
             {} layers of width {hidden_size}, {} channels inside, state \
             {state_size}, {mixer}{convolution}{biases}\n\
             {more}vocabulary {vocab_size}, head {head}\n\n",
            config.family.title(),
            layers.len(),
            config.inner_size()
        );
    }

    /// A table of the parameters, in which layers that are alike are one row.
    fn parameters(&mut self, tensors: &[(TensorSpec, DType)]) {
        let mut rows: Vec<(String, &TensorSpec, DType, u64)> = Vec::new();
        for (tensor, dtype) in tensors {
            let name = any_layer(&tensor.name);
            let alike = rows.iter_mut().find(|(other, spec, other_dtype, _)| {
                *other == name && spec.shape == tensor.shape && other_dtype == dtype
            });
            match alike {
                Some((.., count)) => *count += 1,
                None => rows.push((name, tensor, *dtype, 1)),
            }
        }
        let cells = rows.iter().map(|(name, tensor, dtype, count)| {
            let layers = if *count == 1 { String::new() } else { format!("{count} × ") };
            let elements = count * tensor.shape.iter().product::<usize>() as u64;
            [
                name.clone(),
                format!("{layers}{:?}", tensor.shape),
                dtype.to_string(),
                elements.to_string(),
                bytes(elements * dtype.size() as u64),
            ]
        });
        let header = ["parameter", "shape", "dtype", "elements", "size"].map(String::from);
        let cells: Vec<[String; 5]> = [header].into_iter().chain(cells).collect();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max();
        let [a, b, c, d, e] = std::array::from_fn(|column| width(column).unwrap_or(0));
        for [name, shape, dtype, elements, size] in &cells {
            self.text +=
                &format!("{name:a$}  {shape:b$}  {dtype:c$}  {elements:>d$}  {size:>e$}\n");
        }
        self.text.push('\n');
    }

    /// What it takes to run and to train the model.
    fn memory(&mut self, config: &Config, dtype: DType) {
        let running = Memory::of_running(config, dtype, 1);
        let recipe = Recipe::default();
        let training = Memory::of_training(config, dtype, &recipe);
        let Recipe { batch_size, block_size, .. } = recipe;
        self.text += &format!(
            "memory to run it: about {}, of which {} for the state and the work of one text\n\
             memory to train it: about {}, with {batch_size} sequences of {block_size} tokens\n\n",
            bytes(running.total()),
            bytes(running.activations),
            bytes(training.total()),
        );
    }

    /// A line about a checkpoint.
    fn checkpoint(&mut self, path: &Path) -> Option<CheckpointInfo> {
        self.line(path, verify_checkpoint(path), |info| {
            let mut text = format!("step {}", info.step);
            if let Some(evaluation) = info.evaluation {
                text += &format!(", held-out loss {:.3}", evaluation.loss);
                let bits = evaluation.bits_per_byte;
                text += &bits.map_or(String::new(), |bits| format!(", {bits:.3} bits/byte"));
            }
            format!("{text}, {} files as written", info.files + 1)
        })
    }

    /// A line about the token cache of a run.
    fn dataset(&mut self, path: &Path) -> Option<Dataset> {
        self.line(path, Dataset::open(path), |data| {
            let (train, held_out) = (data.train_tokens(), data.held_out_tokens());
            format!("{train} tokens for training, {held_out} held out, files as written")
        })
    }

    /// A line about what is at a path, if it is not damaged.
    fn line<T>(
        &mut self,
        path: &Path,
        found: taipan_lm::Result<T>,
        describe: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let text = found.as_ref().map_or("DAMAGED".into(), describe);
        self.text += &format!("{}: {text}\n", path.display());
        found.map_err(|error| self.damaged.push(error.to_string())).ok()
    }
}

/// The dtype that a `config.json` names, if it does.
fn stored_dtype(path: &Path) -> Option<DType> {
    let config: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    match config.get("dtype").or(config.get("torch_dtype"))?.as_str()? {
        "float32" => Some(DType::F32),
        "bfloat16" => Some(DType::BF16),
        "float16" => Some(DType::F16),
        "float64" => Some(DType::F64),
        _ => None,
    }
}

fn size_of((tensor, dtype): &(TensorSpec, DType)) -> u64 {
    tensor.shape.iter().product::<usize>() as u64 * dtype.size() as u64
}

/// `backbone.layers.*.norm.weight`
fn any_layer(name: &str) -> String {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    name.split('.')
        .map(|part| if is_number(part) { "*" } else { part })
        .collect::<Vec<_>>()
        .join(".")
}

/// The attention and the MLPs of a model, a line each.
fn hybrid(config: &Config) -> String {
    let mut text = String::new();
    if let Some(attention) = config.attention {
        let AttentionConfig { num_heads, num_key_value_heads, head_dim, .. } = attention;
        let with = |layer: &LayerKind| layer.has_attention();
        let layers = config.layers.iter().enumerate().filter(|(_, layer)| with(layer));
        let layers: Vec<String> = layers.map(|(i, _)| i.to_string()).collect();
        let layers = match config.layers.iter().all(with) {
            true => "every layer".to_owned(),
            false if layers.len() == 1 => format!("layer {}", layers[0]),
            false => format!("layers {}", layers.join(", ")),
        };
        let positions = match attention.rope_theta {
            Some(theta) => format!("rotary positions of base {theta}"),
            None => "no positions".into(),
        };
        text += &format!(
            "attention in {layers}: {num_heads} heads of {head_dim}, {num_key_value_heads} of keys \
             and values, {positions}\n"
        );
    }
    if let Some(mlp) = config.mlp {
        text += &format!("MLP of width {} in every layer\n", mlp.size);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::any_layer;

    #[test]
    fn layers_are_one_row() {
        assert_eq!(any_layer("backbone.layers.17.mixer.D"), "backbone.layers.*.mixer.D");
        assert_eq!(any_layer("backbone.norm_f.weight"), "backbone.norm_f.weight");
    }
}

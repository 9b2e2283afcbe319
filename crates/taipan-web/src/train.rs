//! Training, step by step.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use taipan::DType;
use taipan::optim::{Curve, Schedule};
use taipan_lm::data::{Dataset, Split, Task};
use taipan_lm::{Error, Memory, Recipe, Trainer, checkpoints, filesystem};
use wasm_bindgen::prelude::*;

use crate::Session;
use crate::failure::{Result, parse};
use crate::session::{Model, estimate_config};

/// The directory of a run that is not stored.
const RUN: &str = "runs";

/// The data of a run, in its directory.
const DATA: &str = "data";

/// The task of a run that has one, in its directory.
const TASK: &str = "task.json";

/// The options of training that determine its result.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Options {
    steps: u64,
    lr: f64,
    min_lr: Option<f64>,
    warmup: Option<u64>,
    schedule: Shape,
    batch_size: usize,
    block_size: usize,
    seed: u64,
    weight_decay: f64,
    grad_clip: Option<f64>,
    /// Instead of texts.
    task: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shape {
    Cosine,
    Constant,
    Wsd,
}

impl Default for Options {
    fn default() -> Options {
        let Recipe { schedule, batch_size, weight_decay, grad_clip, seed, .. } = Recipe::default();
        Options {
            steps: 500,
            lr: schedule.peak,
            min_lr: None,
            warmup: None,
            schedule: Shape::Cosine,
            batch_size,
            block_size: 128,
            seed,
            weight_decay,
            grad_clip,
            task: None,
        }
    }
}

impl Options {
    fn recipe(&self) -> Recipe {
        let &Options { steps, lr, batch_size, block_size, seed, weight_decay, grad_clip, .. } =
            self;
        let curve = match self.schedule {
            Shape::Cosine => Curve::Cosine,
            Shape::Constant => Curve::Constant,
            Shape::Wsd => Curve::StableDecay { decay: steps / 5 },
        };
        let schedule = Schedule {
            peak: lr,
            min: self.min_lr.unwrap_or_else(|| Recipe::min_lr(lr)),
            warmup: self.warmup.unwrap_or(steps / 20),
            total: steps,
            curve,
        };
        Recipe {
            schedule,
            batch_size,
            block_size,
            seed,
            weight_decay,
            // 0 to clip nothing.
            grad_clip: grad_clip.filter(|norm| *norm != 0.0),
            ..Recipe::default()
        }
    }
}

fn directory(run: &str) -> PathBuf {
    Path::new(RUN).join(run)
}

#[wasm_bindgen]
impl Session {
    /// Begin to train the model on the texts that were added, in the directory of `run`. Returns
    /// `{step, steps, heldOut}`.
    pub fn train(&mut self, run: &str, options: &str) -> std::result::Result<String, JsValue> {
        Ok(self.begin_training(run, options)?)
    }

    /// Go on with the run whose files are in its directory; `steps` may change its length.
    pub fn resume(
        &mut self,
        run: &str,
        steps: Option<u32>,
    ) -> std::result::Result<String, JsValue> {
        Ok(self.resume_training(run, steps)?)
    }

    /// Ask the device for all kernels of a step.
    pub fn warm_up(&mut self) -> std::result::Result<(), JsValue> {
        Ok(self.rehearse()?)
    }

    /// Remember the weights, for [`roll_back`](Session::roll_back).
    pub fn begin_adaptation(&mut self) -> std::result::Result<(), JsValue> {
        let model = self.model()?;
        self.before = Some((model.lm().clone(), model.tokenizer.clone()));
        Ok(())
    }

    /// Keep the weights as they are now.
    pub fn keep_adaptation(&mut self) {
        self.before = None;
        self.model = self.model.take().map(|model| {
            let tokenizer = model.tokenizer.clone();
            Model::new(model.into_lm(), tokenizer)
        });
    }

    /// The weights that were remembered.
    pub fn roll_back(&mut self) {
        if let Some((lm, tokenizer)) = self.before.take() {
            self.model = Some(Model::new(lm, tokenizer));
        }
    }

    /// One step: `{step, loss, lr, gradNorm, tokens, skipped}`.
    pub async fn step(&mut self) -> std::result::Result<String, JsValue> {
        Ok(self.train_step().await?)
    }

    /// The loss on held-out text, of at most this many tokens.
    pub async fn evaluate_held_out(&mut self, tokens: u32) -> std::result::Result<String, JsValue> {
        Ok(self.held_out(tokens).await?)
    }

    /// Write a checkpoint to the directory of the run; returns its path.
    pub async fn checkpoint(&mut self, run: String) -> std::result::Result<String, JsValue> {
        Ok(self.write_checkpoint(&run).await?)
    }
}

impl Session {
    fn begin_training(&mut self, run: &str, options: &str) -> Result<String> {
        let mut options: Options = parse("train", options)?;
        let task = options.task.take().map(task).transpose()?;
        options.block_size = task.as_ref().map_or(options.block_size, Task::block_size);
        let recipe = options.recipe();
        // Before anything is changed.
        recipe.check()?;
        let sources = self.take_texts();
        let model = self.model()?;
        let run = directory(run);
        // A run of this name that was here before.
        let _ = filesystem::remove_dir_all(&run);
        filesystem::create_dir_all(&run).map_err(Error::io(&run))?;
        let data = match task {
            Some(task) => {
                let path = run.join(TASK);
                let json = serde_json::to_string(&task).expect("numbers and strings");
                filesystem::write(&path, json).map_err(Error::io(&path))?;
                Dataset::task(task)?
            }
            None => {
                let split = Split { seed: options.seed, ..Split::default() };
                Dataset::build(run.join(DATA), &sources, &model.tokenizer, &split)?
            }
        };
        let (tokenizer, lm) = (model.tokenizer.clone(), model.lm().clone());
        let trainer = Trainer::new(lm, data, tokenizer, recipe)?;
        Ok(self.trained_by(trainer))
    }

    fn resume_training(&mut self, run: &str, steps: Option<u32>) -> Result<String> {
        let run = directory(run);
        let path = run.join(TASK);
        let data = match filesystem::read_to_string(&path) {
            Ok(json) => Dataset::task(parse(TASK, &json)?)?,
            Err(_) => Dataset::open(run.join(DATA))?,
        };
        let trainer = Trainer::resume(&run, data, &self.device, |recipe| {
            if let Some(steps) = steps {
                recipe.schedule.total = steps.into();
            }
        })?;
        Ok(self.trained_by(trainer))
    }

    fn rehearse(&mut self) -> Result<()> {
        Ok(self.model_mut()?.trainer()?.rehearse()?)
    }

    fn trained_by(&mut self, trainer: Trainer) -> String {
        let begun = json!({
            "step": trainer.steps_done(),
            "steps": trainer.recipe().schedule.total,
            "heldOut": trainer.dataset().held_out_tokens() > 0,
        });
        self.model = Some(Model::trained(trainer));
        begun.to_string()
    }

    async fn train_step(&mut self) -> Result<String> {
        let report = self.model_mut()?.trainer()?.step().await?;
        Ok(json!({
            "step": report.step, "loss": report.loss, "lr": report.lr,
            "gradNorm": report.grad_norm, "tokens": report.tokens, "skipped": report.skipped,
        })
        .to_string())
    }

    async fn held_out(&mut self, tokens: u32) -> Result<String> {
        let trainer = self.model_mut()?.trainer()?;
        let evaluation = trainer.evaluate(tokens.into()).await?;
        let mut found = json!({ "loss": evaluation.loss });
        if let Some(bits) = evaluation.bits_per_byte {
            found["bitsPerByte"] = bits.into();
        }
        if trainer.dataset().as_task().is_some() {
            found["accuracy"] = trainer.accuracy(tokens.into()).await?.into();
        }
        Ok(found.to_string())
    }

    async fn write_checkpoint(&mut self, run: &str) -> Result<String> {
        let run = directory(run);
        let saved = self.model_mut()?.trainer()?.save(&run, 1).await?;
        if let Some(problem) = saved.problems.into_iter().next() {
            return Err(problem.into());
        }
        // An older one may have been kept since it was the best; the page stores the last.
        for (_, path) in checkpoints(&run)? {
            if path != saved.checkpoint {
                filesystem::remove_dir_all(&path).map_err(Error::io(&path))?;
            }
        }
        Ok(saved.checkpoint.display().to_string())
    }
}

/// A task of the package: what is not said is chosen.
fn task(mut keys: Map<String, Value>) -> Result<Task> {
    let length = keys.entry("length").or_insert(32.into()).as_u64().unwrap_or(0);
    if keys.get("task") == Some(&"selective-copying".into()) {
        keys.entry("data").or_insert((length / 4).clamp(1, 8).into());
    }
    parse("task", &Value::Object(keys).to_string())
}

/// What training takes: `{bytes, parameters}`.
pub(crate) fn estimate(options: &str) -> Result<String> {
    #[derive(Deserialize)]
    struct Asked {
        config: Map<String, Value>,
        train: Options,
    }
    let Asked { config, train } = parse("probe", options)?;
    let config = estimate_config(config)?;
    let memory = Memory::of_training(&config, DType::F32, &train.recipe());
    Ok(json!({ "bytes": memory.total(), "parameters": config.parameters() }).to_string())
}

//! Training a model, with checkpoints from which a run resumes to the bit.

mod evaluation;
mod layout;
mod pass;
mod reduction;
mod state;
mod team;
mod together;
mod tree;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Group, LossScale};
use taipan::{DType, Device, Tensor};

use crate::checkpoint::{
    self, Evaluation, OPTIMIZER, TrainerJson, checkpoints, prune, remove_temporary,
};
use crate::data::{Dataset, Order};
use crate::error::ensure;
use crate::pretrained::{TOKENIZER, write_model};
use crate::{
    Batch, Error, IGNORE, LanguageModel, Recipe, Result, Role, Tokenizer, filesystem, safetensors,
};

use self::team::{Command, Team};

/// A run: a model, its training data, and the recipe.
///
/// These and the number of a step determine its result, on one kind of device to the bit. A run
/// that was [saved](Trainer::save) and [resumed](Trainer::resume) writes the same checkpoints as
/// one that was not interrupted.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::data::{Dataset, Sources, Split};
/// use taipan_lm::{LanguageModel, Preset, Recipe, Tokenizer, Trainer};
///
/// # let run = std::env::temp_dir().join(format!("taipan-trainer-{}", std::process::id()));
/// # let tiny = Preset::Tiny.config(256);
/// # let config = taipan_lm::Config { hidden_size: 16, ..tiny };
/// # std::fs::create_dir_all(&run).unwrap();
/// let rhyme = "one two three four five, once I caught a fish alive";
/// let texts = Sources::texts([("a rhyme", rhyme)]);
/// let tokenizer = Tokenizer::bytes();
/// let data = Dataset::build(&run.join("data"), &texts, &tokenizer, &Split::default())?;
/// # let _ = stringify!(
/// let config = Preset::Tiny.config(tokenizer.vocab_size());
/// # );
/// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
/// let recipe = Recipe { batch_size: 2, block_size: 4, ..Recipe::default() };
/// let mut trainer = Trainer::new(model, data, tokenizer, recipe)?;
/// for _ in 0..10 {
///     let report = pollster::block_on(trainer.step())?;
///     println!("step {}: loss {:.3}", report.step, report.loss);
/// }
/// trainer.save_blocking(&run, 3)?;
///
/// let data = Dataset::open(run.join("data"))?;
/// let trainer = Trainer::resume(&run, data, &Device::Cpu, |_recipe| {})?;
/// assert_eq!(trainer.steps_done(), 10);
/// # std::fs::remove_dir_all(&run).unwrap();
/// # Ok::<(), taipan_lm::Error>(())
/// ```
pub struct Trainer {
    model: LanguageModel,
    dataset: Dataset,
    tokenizer: Tokenizer,
    recipe: Recipe,
    /// Of all that is trained, or of this process's part of it.
    adamw: AdamW,
    /// The processes that train together, if there are several.
    team: Option<Team>,
    steps_done: u64,
    /// Of the current model.
    evaluation: Option<Evaluation>,
    /// The checkpoint that was last written or read.
    checkpoint: Option<PathBuf>,
    /// The fingerprint of the frozen model, if adapters are trained; known from the first checkpoint.
    base: Option<String>,
    /// Saved with every checkpoint, for the program that trains to find again when it resumes: its
    /// settings, what it has yet to log. The trainer does not use it.
    pub notes: Map<String, Value>,
}

/// The result of [`Trainer::save`].
#[derive(Debug)]
pub struct SaveReport {
    /// The checkpoint, which is complete and on the disk.
    pub checkpoint: PathBuf,
    /// Of older checkpoints, those that could not be read or removed. They are unchanged.
    pub problems: Vec<Error>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Its number; the first one is 1.
    pub step: u64,
    /// The mean of `−ln p(token)` over its tokens, before the update.
    pub loss: f64,
    /// Its learning rate.
    pub lr: f64,
    /// The norm of all gradients, before they were clipped; not finite if the step was skipped.
    pub grad_norm: f64,
    /// Steps of the run, this one included, that changed nothing since the norm was not finite.
    pub skipped: u64,
    /// The factor of the next loss before backward.
    pub loss_scale: f64,
    /// Tokens it trained on.
    pub tokens: usize,
}

impl Trainer {
    /// A run that begins with `model`: one with random weights, or one to be fine-tuned.
    pub fn new(
        model: LanguageModel,
        dataset: Dataset,
        tokenizer: Tokenizer,
        recipe: Recipe,
    ) -> Result<Trainer> {
        recipe.check()?;
        dataset.check(recipe.block_size)?;
        let known = model.config().vocab_size;
        for (name, size) in [("data", dataset.vocab_size()), ("tokenizer", tokenizer.vocab_size())]
        {
            let why = format!("a vocabulary of {size}, expected at most the model's, {known}");
            ensure!(size <= known, name, "{why}");
        }
        let mut model = model.with_activations(recipe.activations);
        if let Some(lora) = &recipe.lora {
            let alone = recipe.train_only.is_empty();
            ensure!(alone, "recipe", "train_only and lora found, expected one of them");
            model = model.with_lora(lora, recipe.seed)?;
        }
        if !recipe.train_only.is_empty() {
            model.freeze("*")?;
        }
        for pattern in &recipe.train_only {
            model.unfreeze(pattern)?;
        }
        for pattern in &recipe.freeze {
            model.freeze(pattern)?;
        }
        let adamw = optimizer(model.dtype(), &recipe, &trained(&model, &recipe)?)?;
        Ok(Trainer {
            model,
            dataset,
            tokenizer,
            recipe,
            adamw,
            team: None,
            steps_done: 0,
            evaluation: None,
            checkpoint: None,
            base: None,
            notes: Map::new(),
        })
    }

    /// Resume a run from the last checkpoint in its directory; [`checkpoint`](Trainer::checkpoint)
    /// says which. Its files must have the checksums that they were written with. If one is missing
    /// or damaged, the error says what to do.
    ///
    /// `change` may give the recipe a schedule of another length, or other
    /// [`activations`](Recipe::activations). Anything else would be another run and is refused, as
    /// is other data.
    pub fn resume(
        run: &Path,
        dataset: Dataset,
        device: &Device,
        change: impl FnOnce(&mut Recipe),
    ) -> Result<Trainer> {
        let load = |path: &Path| LanguageModel::from_pretrained(path, None, device);
        Trainer::resume_with(run, dataset, load, change)
    }

    /// [`resume`](Trainer::resume) of a run that trains adapters of `base`.
    #[cfg(not(target_family = "wasm"))]
    pub fn resume_adapters(
        run: &Path,
        dataset: Dataset,
        base: LanguageModel,
        change: impl FnOnce(&mut Recipe),
    ) -> Result<Trainer> {
        let found = pollster::block_on(base.fingerprint())?;
        let mut trainer = Trainer::resume_with(run, dataset, |_| Ok(base), change)?;
        let path = trainer.checkpoint.clone().unwrap_or_default();
        let expected = TrainerJson::read(&path)?.base.unwrap_or_default();
        let why = format!("the fingerprint is {found}, but the run began with {expected}");
        ensure!(found == expected, "base model", "{why}");
        let files = crate::AdapterFiles::open(&path)?;
        // The same parameters, of which the optimiser has the moments, with other values.
        trainer.model.load_adapters(&files)?;
        trainer.base = Some(found);
        Ok(trainer)
    }

    fn resume_with(
        run: &Path,
        dataset: Dataset,
        load: impl FnOnce(&Path) -> Result<LanguageModel>,
        change: impl FnOnce(&mut Recipe),
    ) -> Result<Trainer> {
        remove_temporary(run)?;
        let mut all = checkpoints(run)?;
        let Some((_, path)) = all.pop() else {
            let why = "no checkpoint found, expected one to resume from";
            return Err(Error::invalid(run.display(), why));
        };
        let stored = TrainerJson::verify(&path).map_err(|error| {
            let none = "there is no earlier checkpoint".to_owned();
            error.with_advice(&all.last().map_or(none, |(_, before)| {
                let (path, before) = (path.display(), before.display());
                format!("without the directory {path}, the run resumes from {before}")
            }))
        })?;
        let (found, expected) = (dataset.fingerprint(), &stored.data);
        let why = format!("the fingerprint is {found}, but the run began with {expected}");
        ensure!(found == expected, "data", "{why}");
        let mut recipe = stored.recipe.clone();
        change(&mut recipe);
        stored.recipe.check_continuation(&recipe)?;

        let model = load(&path)?;
        let tokenizer = Tokenizer::from_file(path.join(TOKENIZER))?;
        let mut trainer = Trainer::new(model, dataset, tokenizer, recipe)?;
        let optimizer = path.join(OPTIMIZER);
        let file = safetensors::open(&optimizer)?;
        let tensors = file.names().map(|name| Ok((name.to_owned(), file.view(name)?.tensor()?)));
        let state = tensors.collect::<Result<Vec<(String, Tensor)>>>()?;
        let loaded = trainer.adamw.load_state(&state);
        loaded.map_err(|error| Error::invalid(optimizer.display(), error))?;
        trainer.steps_done = stored.step;
        trainer.evaluation = stored.evaluation;
        trainer.checkpoint = Some(path);
        trainer.notes = stored.notes;
        Ok(trainer)
    }

    /// Compute a step on a copy of the model, of which the result is dropped. On a GPU it compiles
    /// the kernels of a step.
    pub fn rehearse(&self) -> Result<()> {
        let (grads, _) = self.pass(0)?.sum(&self.batches(0..self.recipe.grad_accum)?)?;
        let mut model = self.model.clone();
        let groups = trained(&self.model, &self.recipe)?;
        let mut adamw = optimizer(self.model.dtype(), &self.recipe, &groups)?;
        step_all(&mut adamw, 0.0, &mut trained_mut(&mut model), &grads)
    }

    /// Some of the batches of the next step.
    fn batches(&self, range: std::ops::Range<usize>) -> Result<Vec<Batch>> {
        let first = self.steps_done * self.recipe.grad_accum as u64;
        let Recipe { seed, batch_size, block_size, .. } = self.recipe;
        let order = Order { seed, batch_size, block_size };
        range.map(|i| self.dataset.batch(&order, first + i as u64)).collect()
    }

    /// Train on the next batches. A loss that is not finite is an error, except in f16, where a
    /// smaller loss scale may prevent it from now on.
    pub async fn step(&mut self) -> Result<StepReport> {
        let report = self.step_at(self.recipe.schedule.lr(self.steps_done)).await?;
        let StepReport { step, loss, loss_scale, .. } = report;
        // With a loss scale below 1 it is not the gradients that are too large for f16.
        let may_recover = self.model.dtype() == DType::F16 && loss_scale >= 1.0;
        let (fine, step) = (loss.is_finite() || may_recover, format!("step {step}"));
        let rank = self.team.as_ref().and_then(Team::not_finite);
        let of = rank.map_or(String::new(), |rank| format!(" of {rank}"));
        ensure!(fine, step, "the loss{of} is {loss}, expected a finite number");
        Ok(report)
    }

    /// A [`step`](Trainer::step) with this learning rate instead of the schedule's, whatever the
    /// loss: for a sweep of rates.
    pub async fn step_at(&mut self, lr: f64) -> Result<StepReport> {
        self.send(Command::Step(lr))?;
        self.compute_step(lr).await
    }

    /// A step of this process's part.
    async fn compute_step(&mut self, lr: f64) -> Result<StepReport> {
        let loss = match self.team {
            Some(_) => self.step_together(lr)?,
            None => {
                let batches = self.batches(0..self.recipe.grad_accum)?;
                let (grads, loss) = self.pass(0)?.sum(&batches)?;
                step_all(&mut self.adamw, lr, &mut trained_mut(&mut self.model), &grads)?;
                loss
            }
        };
        self.steps_done += 1;
        self.evaluation = None;

        let (status, loss) = self.adamw.status_and_loss(&loss).await?;
        Ok(StepReport {
            step: self.steps_done,
            loss,
            lr,
            grad_norm: status.norm,
            skipped: status.skipped,
            loss_scale: status.loss_scale,
            tokens: self.recipe.tokens(),
        })
    }

    /// Write `checkpoint-<step>` to the directory of the run, which must exist, and then remove all
    /// older ones but the last `keep` and that of the best evaluation. Whenever this is stopped,
    /// whatever fails: every checkpoint in the directory is complete.
    ///
    /// A step that was saved before is not written again, except for an evaluation since then.
    pub async fn save(&mut self, run: &Path, keep: usize) -> Result<SaveReport> {
        ensure!(keep > 0, "keep", "0 found, expected 1 or more checkpoints");
        let mut problems: Vec<Error> = remove_temporary(run).err().into_iter().collect();
        if self.recipe.lora.is_some() && self.base.is_none() {
            self.base = Some(self.model.without_adapters()?.fingerprint().await?);
        }
        let trainer_json = TrainerJson {
            base: self.base.clone(),
            step: self.steps_done,
            data: self.dataset.fingerprint().into(),
            evaluation: self.evaluation,
            recipe: self.recipe.clone(),
            notes: self.notes.clone(),
            ..TrainerJson::default()
        };
        let path = run.join(checkpoint::name(self.steps_done));
        if self.checkpoint.as_ref() == Some(&path) && filesystem::is_there(&path) {
            trainer_json.rewrite(&path)?;
        } else {
            let state = match &mut self.team {
                Some(team) => {
                    team.send(Command::GatherState)?;
                    team.gather_state(&self.adamw)?.expect("the first process gathers it")
                }
                None => self.adamw.state(),
            };
            trainer_json.write(&path, &self.model, &self.tokenizer, state).await?;
        }
        self.checkpoint = Some(path.clone());
        problems.extend(prune(run, keep).unwrap_or_else(|error| vec![error]));
        Ok(SaveReport { checkpoint: path, problems })
    }

    /// [`save`](Trainer::save) for native callers; absent on the web, where nothing may block.
    #[cfg(not(target_family = "wasm"))]
    pub fn save_blocking(&mut self, run: &Path, keep: usize) -> Result<SaveReport> {
        pollster::block_on(self.save(run, keep))
    }

    /// Write the current model to a directory, which must exist, for Hugging Face's library and
    /// others, as `LanguageModel::save_pretrained` does; or its adapters, for PEFT.
    pub async fn export(&self, directory: &Path) -> Result<()> {
        write_model(&self.model, &self.tokenizer, self.recipe.lora.as_ref(), directory).await
    }

    /// [`export`](Trainer::export) for native callers.
    #[cfg(not(target_family = "wasm"))]
    pub fn export_blocking(&self, directory: &Path) -> Result<()> {
        pollster::block_on(self.export(directory))
    }

    /// The model, when training is over. What the recipe froze is tracked again.
    pub fn into_model(mut self) -> LanguageModel {
        for (_, parameter) in self.model.parameters_mut() {
            *parameter = parameter.detached().tracked();
        }
        self.model
    }

    /// The current model.
    pub fn model(&self) -> &LanguageModel {
        &self.model
    }

    /// The training data.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The tokenizer of the data.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How the model is trained.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Steps done so far.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// The checkpoint that was last written, or resumed from.
    pub fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_deref()
    }
}

/// What a recipe trains of a model.
fn trained<'a>(model: &'a LanguageModel, recipe: &Recipe) -> Result<Vec<(&'a Tensor, Group)>> {
    let mut trained: Vec<(&Tensor, Group)> = Vec::new();
    for parameter in model.parameters().into_iter().filter(|p| p.is_tracked()) {
        let decays = parameter.role == Role::Matrix;
        let weight_decay = if decays { recipe.weight_decay } else { 0.0 };
        trained.push((parameter.tensor, Group { weight_decay, ..Group::default() }));
    }
    let (some, freeze) = (!trained.is_empty(), &recipe.freeze);
    ensure!(some, "recipe", "freeze is {freeze:?}, which leaves nothing to train");
    Ok(trained)
}

/// The optimiser of these parameters of a model of this type.
fn optimizer(dtype: DType, recipe: &Recipe, trained: &[(&Tensor, Group)]) -> Result<AdamW> {
    let is_f16 = dtype == DType::F16;
    let loss_scale = if is_f16 { LossScale::dynamic() } else { LossScale::None };
    let &Recipe { beta1, beta2, eps, grad_clip: max_norm, .. } = recipe;
    let options = AdamWOptions { beta1, beta2, eps, max_norm, loss_scale };
    Ok(AdamW::new(options, trained)?)
}

/// The tensors of a model that are trained.
fn trained_mut(model: &mut LanguageModel) -> Vec<&mut Tensor> {
    let parameters = model.parameters_mut().into_iter().map(|(_, parameter)| parameter);
    parameters.filter(|parameter| parameter.is_tracked()).collect()
}

/// A step of all parameters, given their gradients.
fn step_all(
    adamw: &mut AdamW,
    lr: f64,
    parameters: &mut [&mut Tensor],
    grads: &[Tensor],
) -> Result<()> {
    let grads: Vec<&Tensor> = grads.iter().collect();
    let sums = adamw.square_sums(&grads)?;
    Ok(adamw.step_shard(lr, parameters, &grads, &sums)?)
}

/// How many tokens a batch predicts.
fn targets(batch: &Batch) -> usize {
    batch.targets.iter().filter(|target| **target != IGNORE).count()
}

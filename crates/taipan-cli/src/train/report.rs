//! The reports before the first step and after the last.

use std::time::Duration;

use anstyle::Style;
use taipan::{DType, Device};
use taipan_lm::{LanguageModel, free_memory};

use super::corpus::Corpus;
use super::metrics::{HeldOut, Row};
use super::progress::{duration, is_terminal, rate, width};
use super::settings::Settings;
use super::sparkline::{range, sparkline};
use super::start::Start;
use super::values::LrCurve;
use crate::machine;
use crate::wrap::wrap;

const NAME: Style = Style::new().bold();

/// Model, data and settings of the run.
pub fn summary(settings: &Settings, start: &Start) -> String {
    let trainer = &start.trainer;
    let (model, data, recipe) = (trainer.model(), trainer.dataset(), trainer.recipe());
    let parameters = model.config().parameters() as f64 / 1e6;
    let text = match settings.files.as_slice() {
        [] if settings.corpus == Some(Corpus::Sources) => "taipan's own sources".into(),
        [] => "little stories, since no FILES are given".into(),
        [file] => file.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    };
    let from = settings.from.as_ref();
    let from = from.map_or(String::new(), |from| format!(", fine-tuned from {}", from.display()));
    let mut lines = vec![
        ("model", format!("{}, {parameters:.2} M parameters{from}", shape(model))),
        ("text", format!("{text}, {}", crate::bytes(data.bytes()))),
    ];
    let all = model.parameters();
    let trained: usize = all.iter().filter(|p| p.is_tracked()).map(|p| p.len()).sum();
    if trained < all.iter().map(|p| p.len()).sum() {
        let how = recipe.lora.as_ref().map_or(String::new(), |lora| {
            format!(", adapters of rank {} on {}", lora.rank, lora.targets.join(", "))
        });
        lines.push(("trained", format!("{:.2} M parameters{how}", trained as f64 / 1e6)));
    }
    for warning in recipe.lora.iter().flat_map(|lora| lora.warnings(model.config())) {
        lines.push(("warning", warning));
    }
    if let [first, ..] = start.skipped.as_slice() {
        let (path, reason, files) = (first.path.display(), first.reason, start.skipped.len());
        lines.push(("skipped", format!("{files} of the files found, as {path}: {reason}")));
    }
    let train = rate(data.train_tokens() as f64);
    let held_out = rate(data.held_out_tokens() as f64);
    let vocabulary = data.vocab_size();
    let tokens = format!("{train} for training, {held_out} held out, vocabulary {vocabulary}");
    let per_step = match recipe.grad_accum {
        1 => format!("{} × {}", recipe.batch_size, recipe.block_size),
        accum => format!("{accum} × {} × {}", recipe.batch_size, recipe.block_size),
    };
    let all = settings.steps as f64 * recipe.tokens() as f64;
    let epochs = all / data.train_tokens() as f64;
    let training = format!(
        "{} steps of {per_step} tokens: {} in total, {epochs:.2} epochs",
        settings.steps,
        rate(all),
    );
    let (lr, min_lr) = (settings.lr, settings.min_lr);
    let then = match settings.schedule {
        LrCurve::Constant => String::new(),
        LrCurve::Cosine => format!(", cosine decay to {min_lr:.1e}"),
        LrCurve::Wsd => format!(", decay to {min_lr:.1e} in the last {} steps", settings.decay),
    };
    let source = settings.lr_source(model.config());
    let source = source.map_or(String::new(), |source| format!(" ({source})"));
    let warmup = match settings.warmup {
        1 => "1 step".into(),
        steps => format!("{steps} steps"),
    };
    let schedule = format!("{lr:.1e}{source}, warm-up {warmup}{then}");
    let device = model.device();
    let chosen = settings.specified.device.as_deref().is_none_or(|name| name == machine::AUTO);
    let choose = match chosen && *device != Device::Cpu {
        true => format!("; {}", machine::CHOOSE),
        false => String::new(),
    };
    let free = free_memory().filter(|_| *device == Device::Cpu);
    let free = free.map_or(String::new(), |free| format!(", {} free", crate::bytes(free)));
    let each = if start.place.ranks > 1 { " for each rank" } else { "" };
    let memory = format!("about {}{each}{free}", crate::bytes(start.memory.total()));
    if start.place.ranks > 1 {
        let each = recipe.grad_accum / start.place.ranks;
        let sent = settings.reduce_dtype.map(|dtype| {
            let dtype = DType::from(dtype);
            format!("; gradients are rounded to {dtype}, so results depend on the number of ranks")
        });
        let sent = sent.unwrap_or_default();
        lines.push((
            "ranks",
            format!("{}, each with {each} batches per step{sent}", start.place.ranks),
        ));
    }
    let out = settings.out.display();
    let out = match trainer.steps_done() {
        0 => out.to_string(),
        done => format!("{out}, {done} steps done"),
    };
    lines.extend([
        ("tokens", tokens),
        ("training", training),
        ("lr", schedule),
        ("device", device.describe() + &choose),
        ("memory", memory),
        ("output", out),
    ]);
    table(&lines)
}

/// A short description of a model.
pub fn shape(model: &LanguageModel) -> String {
    let config = model.config();
    let (layers, width, state) = (config.layers.len(), config.hidden_size, config.state_size);
    let head = if config.tie_word_embeddings { "tied" } else { "own" };
    let family = config.family.title();
    format!(
        "{family}, width {width}, layers {layers}, state {state}, {head} head, {}",
        model.dtype()
    )
}

/// The results of a run; `speed` in tokens per second.
pub fn results(rows: &[Row], time: Duration, speed: f64) -> String {
    let losses: Vec<f64> =
        rows.iter().filter_map(|row| Some(row.training.as_ref()?.loss)).collect();
    let mut lines = vec![("time", format!("{}, {} tokens/s", duration(time), rate(speed)))];
    if let [first, .., last] = losses[..] {
        let (min, _) = range(&losses);
        let columns = width().saturating_sub(NAMES + 30).clamp(8, 60);
        let curve = sparkline(&losses, columns);
        lines.push(("loss", format!("{first:.3} {curve} {last:.3}, lowest {min:.3}")));
    }
    let held_out: Vec<(u64, HeldOut)> =
        rows.iter().filter_map(|row| Some((row.step, row.held_out?))).collect();
    let best = held_out.iter().min_by(|a, b| a.1.val_loss.total_cmp(&b.1.val_loss));
    if let (Some((step, best)), Some((_, last))) = (best, held_out.last()) {
        let (last, best) = match (last.bits_per_byte, best.bits_per_byte) {
            (Some(last), Some(best)) => (format!("{last:.3} bits/byte"), best),
            _ => (format!("{:.3} nats per token", last.val_loss), best.val_loss),
        };
        lines.push(("held out", format!("{last}, the best was {best:.3} at step {step}")));
    }
    table(&lines)
}

/// Where the model is, and how to use it.
pub fn next_steps(settings: &Settings) -> String {
    let out = settings.out.display();
    table(&[
        (
            "model",
            match settings.lora {
                Some(_) => format!("{out}: adapter_config.json, adapter_model.safetensors"),
                None => format!("{out}: config.json, model.safetensors, tokenizer.json"),
            },
        ),
        ("curves", format!("{out}/loss.svg, {out}/metrics.jsonl")),
        ("generate", format!("taipan generate {out}")),
    ])
}

/// How to train a finished model further.
pub fn longer(settings: &Settings) -> String {
    table(&[("to resume", format!("{} --steps {}", resume(settings), 2 * settings.steps))])
}

/// A sentence, broken between words where it is shown on a terminal.
pub fn sentence(text: &str) -> String {
    format!("{}\n", wrapped(text, 0))
}

/// The command that resumes a run.
pub fn resume(settings: &Settings) -> String {
    format!("taipan train --resume --out {}", settings.out.display())
}

/// Columns of the names.
const NAMES: usize = 12;

fn table(lines: &[(&str, String)]) -> String {
    let line = |(name, value): &(&str, String)| {
        format!("{NAME}{name:<NAMES$}{NAME:#}{}\n", wrapped(value, NAMES))
    };
    lines.iter().map(line).collect()
}

/// A text after `indent` columns.
pub fn wrapped(text: &str, indent: usize) -> String {
    if is_terminal() { wrap(text, indent, width()) } else { text.into() }
}

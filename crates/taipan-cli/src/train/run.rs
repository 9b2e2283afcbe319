//! The training loop, with what is measured, shown and saved between steps.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use taipan_lm::{StepReport, Trainer};

use super::metrics::{HeldOut, Lines, Metrics, Row, TIMINGS, Timing, Training};
use super::progress::{Progress, State};
use super::settings::Settings;
use super::start::Start;
use super::tensorboard::Events;
use super::{curve, lock, report, sample};
use crate::{Failure, message, stop};

/// Problems that do not stop the training; the first one creates it.
pub const WARNINGS: &str = "warnings.log";

/// The key of [`Unlogged`] in the notes of checkpoints.
const UNLOGGED: &str = "unlogged";

/// What a sample begins with.
const SAMPLE: &str = "  sample: ";

/// A run in progress.
pub struct Run {
    settings: Settings,
    start: Start,
    metrics: Metrics,
    timings: Lines,
    events: Option<Events>,
    progress: Progress,
    warned: HashSet<String>,
    began: Instant,
    /// Steps that were done when the program began.
    before: u64,
    held_out: Option<HeldOut>,
    /// Of samples.
    prompt: String,
    unlogged: Unlogged,
    /// Of this invocation: since the last row, and in total.
    recent: Throughput,
    total: Throughput,
}

/// Steps, and the time of these alone.
#[derive(Clone, Copy, Default)]
struct Throughput {
    steps: u64,
    time: Duration,
}

impl Throughput {
    fn add(&mut self, time: Duration) {
        self.steps += 1;
        self.time += time;
    }

    /// Given the tokens per step.
    fn tokens_per_second(self, tokens: u64) -> f64 {
        (self.steps * tokens) as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// The steps since the last regular row of metrics. A checkpoint has it, so that the next row is
/// the same whether the run was interrupted or not.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
struct Unlogged {
    steps: u64,
    losses: f64,
    /// The last row is of a stop between two regular ones.
    extra_row: bool,
}

/// Why there is no next step.
enum StopReason {
    /// All steps are done.
    Done,
    /// The time is over.
    MaxTime,
    /// Evaluations do not improve.
    EarlyStop,
    /// `--stop-after`
    StopAfter,
    /// A signal.
    Interrupted,
}

impl Run {
    pub fn new(settings: Settings, start: Start) -> Result<Run, Failure> {
        let before = start.trainer.steps_done();
        let unlogged = start.trainer.notes.get(UNLOGGED).cloned().unwrap_or_default();
        let unlogged: Option<Unlogged> = serde_json::from_value(unlogged)?;
        let unlogged = unlogged.unwrap_or_default();
        let metrics = Metrics::open(&settings.out, before, unlogged.extra_row)?;
        let timings = Lines::open(&settings.out.join(TIMINGS))?;
        let events = || Events::create(&settings.out, before);
        let events = settings.tensorboard.then(events).transpose()?;
        Ok(Run {
            held_out: metrics.rows.iter().rev().find_map(|row| row.held_out),
            prompt: sample::prompt(&start.trainer, &settings)?,
            warned: HashSet::new(),
            settings,
            start,
            metrics,
            timings,
            events,
            progress: Progress::new(),
            began: Instant::now(),
            before,
            unlogged: Unlogged { extra_row: false, ..unlogged },
            recent: Throughput::default(),
            total: Throughput::default(),
        })
    }

    /// Train until a reason to stop, and write the model to the directory of the run. Returns the
    /// trainer, and whether a signal was the reason.
    pub fn run(mut self) -> Result<(Trainer, ControlFlow<()>), Failure> {
        self.progress.print(&format!("{}\n", report::summary(&self.settings, &self.start)));
        if let Some(warning) = lock::warning(&self.settings.out) {
            self.warn(&warning);
        }
        let stop = match self.steps() {
            Ok(stop) => stop,
            Err(error) => return Err(self.with_resume_hint(error)),
        };
        let interrupted = match stop {
            StopReason::Interrupted => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let step = self.start.trainer.steps_done();
        let resume = report::resume(&self.settings);
        if step == 0 {
            let stopped = format!("stopped before the first step; start again with: {resume}");
            self.progress.print(&report::sentence(&stopped));
            return Ok((self.start.trainer, interrupted));
        }
        self.progress.note("writing the model");
        self.start.lock.check()?;
        self.start.trainer.export_blocking(&self.settings.out)?;
        self.progress.print("\n");
        let speed = self.total.tokens_per_second(self.tokens());
        let results = report::results(&self.metrics.rows, self.began.elapsed(), speed);
        self.progress.print(&results);
        let is_over = !matches!(stop, StopReason::StopAfter | StopReason::Interrupted);
        if is_over && self.settings.sample_tokens > 0 {
            self.progress.print("\n");
            let (seed, tokens) = (self.settings.seed, self.settings.sample_tokens);
            let mut text = String::new();
            sample::sample(&self.start.trainer, seed, &self.prompt, tokens, |new| text += new)?;
            for line in text.split('\n') {
                self.progress.print(&format!("{}\n", report::wrapped(line, 0)));
            }
        }
        self.progress.print(&format!("\n{}", report::next_steps(&self.settings)));
        let at = format!("at step {step} of {}", self.settings.steps);
        let stopped = match stop {
            StopReason::Done => None,
            StopReason::EarlyStop => {
                let n = self.settings.early_stop;
                Some(format!("stopped early {at}: no lower held-out loss in {n} evaluations"))
            }
            StopReason::MaxTime => Some(format!("stopped {at} by --max-time, saved")),
            StopReason::StopAfter | StopReason::Interrupted => Some(format!("stopped {at}, saved")),
        };
        let end = match stopped {
            None => report::longer(&self.settings),
            Some(stopped) => report::sentence(&format!("{stopped}; resume with: {resume}")),
        };
        self.progress.print(&end);
        self.check_output();
        Ok((self.start.trainer, interrupted))
    }

    /// Report, once, a problem that does not affect the training.
    fn warn(&mut self, warning: &str) {
        if self.log_warning(warning) {
            self.progress.log_line(&format!("{} {warning}", message::warning_label()));
        }
    }

    /// Add a line to [`WARNINGS`], unless it was added before or the directory is no longer the
    /// locked one; returns whether it is new.
    fn log_warning(&mut self, warning: &str) -> bool {
        let new = self.warned.insert(warning.to_owned());
        if new && self.start.lock.check().is_ok() {
            // Where even this cannot be written, there is nobody left to tell.
            let path = self.settings.out.join(WARNINGS);
            let file = File::options().create(true).append(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(format!("{warning}\n").as_bytes()));
        }
        new
    }

    /// Warn if a result is an error.
    fn warn_on_error(&mut self, result: Result<(), Failure>) {
        if let Err(error) = result {
            self.warn(&error.to_string());
        }
    }

    /// Warn if the output failed.
    fn check_output(&mut self) {
        if let Some(failure) = self.progress.console.failure() {
            self.log_warning(&format!("{failure}; the run continues without it"));
        }
    }

    /// Tokens per step.
    fn tokens(&self) -> u64 {
        self.start.trainer.recipe().tokens() as u64
    }

    fn steps(&mut self) -> Result<StopReason, Failure> {
        stop::begin();
        if self.before == 0
            && let Some(held_out) = self.evaluate()?
        {
            self.push(Row { step: 0, training: None, held_out: Some(held_out) }, None);
        }
        let mut stop = self.stop_reason();
        if stop.is_some() && self.before > 0 {
            // The program that came this far may have been killed before it had written everything.
            self.save()?;
        }
        loop {
            if let Some(stop) = stop {
                return Ok(stop);
            }
            let began = Instant::now();
            let report = pollster::block_on(self.start.trainer.step())?;
            self.recent.add(began.elapsed());
            self.total.add(began.elapsed());
            stop = self.after(&report)?;
        }
    }

    fn stop_reason(&self) -> Option<StopReason> {
        let step = self.start.trainer.steps_done();
        let over = self.settings.max_time.is_some_and(|time| self.began.elapsed() >= time.0);
        if step == self.settings.steps {
            Some(StopReason::Done)
        } else if Some(step) == self.settings.stop_after {
            Some(StopReason::StopAfter)
        } else if stop::requested() || self.start.trainer.stop_requested() {
            Some(StopReason::Interrupted)
        } else if over {
            Some(StopReason::MaxTime)
        } else {
            self.has_stalled().then_some(StopReason::EarlyStop)
        }
    }

    /// Whether the last evaluations, as many as `--early-stop` says, were no better than one before
    /// them.
    fn has_stalled(&self) -> bool {
        let losses = self.metrics.rows.iter().filter_map(|row| Some(row.held_out?.val_loss));
        let losses: Vec<f64> = losses.collect();
        let best = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b]));
        let since = best.map_or(0, |best| losses.len() - 1 - best) as u64;
        self.settings.early_stop > 0 && since >= self.settings.early_stop
    }

    /// Measure, show and save what is due after a step. Whether it was the last one is determined
    /// once: a signal that comes later is for the next.
    fn after(&mut self, report: &StepReport) -> Result<Option<StopReason>, Failure> {
        // f16 skips a step now and then, until its loss scale fits.
        if report.grad_norm.is_finite() {
            self.unlogged.steps += 1;
            self.unlogged.losses += report.loss;
        } else {
            self.progress.log_line(&format!(
                "step {}: skipped, as the gradient is not finite ({} so far); the loss scale is \
                 now {}",
                report.step, report.skipped, report.loss_scale
            ));
        }
        let mut stop = self.stop_reason();
        let is_due = |interval| report.step.is_multiple_of(interval);
        let is_last = matches!(stop, Some(StopReason::Done | StopReason::MaxTime));
        let evaluates = is_due(self.settings.eval_interval) || is_last;
        let held_out = if evaluates { self.evaluate()? } else { None };
        let state = State { evaluated: held_out.is_some(), ..self.state(report) };
        self.progress.step(&state);
        // Rows that a run without interruption would not have are removed when it is resumed.
        let is_regular = is_due(self.settings.log_interval)
            || (is_due(self.settings.eval_interval) && held_out.is_some())
            || matches!(stop, Some(StopReason::Done));
        if is_regular || stop.is_some() {
            self.progress.log(&state);
            let training = (self.unlogged.steps > 0).then(|| Training {
                loss: state.loss,
                lr: report.lr,
                grad_norm: Some(report.grad_norm).filter(|norm| norm.is_finite()),
                skipped: report.skipped,
                tokens: report.step * self.tokens(),
            });
            match is_regular {
                true => self.unlogged = Unlogged::default(),
                false => self.unlogged.extra_row = true,
            }
            let timing = Timing {
                step: report.step,
                tokens_per_second: state.tokens_per_second,
                seconds: self.began.elapsed().as_secs_f64(),
            };
            self.recent = Throughput::default();
            self.push(Row { step: report.step, training, held_out }, Some(timing));
        }
        if stop.is_none() && held_out.is_some() && self.has_stalled() {
            stop = Some(StopReason::EarlyStop);
        }
        if evaluates && stop.is_none() {
            self.sample();
        }
        if is_due(self.settings.save_interval) || stop.is_some() {
            self.save()?;
        }
        self.check_output();
        Ok(stop)
    }

    fn state(&self, report: &StepReport) -> State {
        let Unlogged { steps, losses, .. } = self.unlogged;
        let last = self.settings.stop_after.unwrap_or(self.settings.steps);
        let elapsed = self.began.elapsed();
        let per_step = elapsed.as_secs_f64() / (report.step - self.before) as f64;
        let left = Duration::try_from_secs_f64(per_step * (last - report.step) as f64);
        let left = left.unwrap_or(Duration::MAX);
        let until = self.settings.max_time.map(|time| time.0.saturating_sub(elapsed));
        State {
            step: report.step,
            steps: self.settings.steps,
            loss: if steps > 0 { losses / steps as f64 } else { report.loss },
            held_out: self.held_out,
            evaluated: false,
            tokens_per_second: self.recent.tokens_per_second(self.tokens()),
            lr: report.lr,
            grad_norm: report.grad_norm,
            left: until.map_or(left, |until| left.min(until)),
        }
    }

    /// Evaluate the model on held-out text, if there is any.
    fn evaluate(&mut self) -> Result<Option<HeldOut>, Failure> {
        if self.start.trainer.dataset().held_out_tokens() == 0 {
            return Ok(None);
        }
        if self.held_out.is_none() {
            self.progress.note("evaluating on held-out text");
        }
        let tokens = self.settings.eval_tokens;
        let evaluation = pollster::block_on(self.start.trainer.evaluate(tokens))?;
        let (val_loss, bits_per_byte) = (evaluation.loss, evaluation.bits_per_byte);
        self.held_out = Some(HeldOut { val_loss, bits_per_byte });
        Ok(self.held_out)
    }

    /// Show a short sample of the text that the model generates now.
    fn sample(&mut self) {
        let Run { start, settings, prompt, .. } = self;
        let tokens = settings.sample_tokens.div_ceil(4);
        if tokens == 0 {
            return;
        }
        let mut text = String::new();
        let sampled =
            sample::sample(&start.trainer, settings.seed, prompt, tokens, |new| text += new);
        // In one paragraph.
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = report::wrapped(&words.join(" "), SAMPLE.len());
        self.progress.log_line(&format!("{SAMPLE}{text}"));
        self.warn_on_error(sampled);
    }

    /// Write a row to every log. What fails is written later, or can be spared.
    fn push(&mut self, row: Row, timing: Option<Timing>) {
        let events = self.events.as_mut().map(|events| events.push(&row, timing.as_ref()));
        let timings = timing.map(|timing| self.timings.push(&timing));
        let metrics = Some(self.metrics.push(row));
        for pushed in [events, timings, metrics].into_iter().flatten() {
            self.warn_on_error(pushed);
        }
    }

    /// Save a checkpoint, after the metrics so far.
    fn save(&mut self) -> Result<(), Failure> {
        self.start.lock.check()?;
        self.metrics.sync()?;
        let Settings { out, keep, .. } = &self.settings;
        let trainer = &mut self.start.trainer;
        trainer.notes.insert(UNLOGGED.into(), serde_json::to_value(self.unlogged)?);
        let saved = trainer.save_blocking(out, *keep)?;
        let title = format!("{}, {}", out.display(), report::shape(trainer.model()));
        let picture = curve::svg(&self.metrics.rows, &title);
        let drawn = taipan_lm::write_file(&out.join(curve::FILE), picture.as_bytes());
        self.warn_on_error(drawn.map_err(Failure::from));
        for problem in saved.problems {
            self.warn(&format!("{problem}; it is left unchanged"));
        }
        Ok(())
    }

    /// Adds to an error how to resume.
    fn with_resume_hint(&mut self, error: Failure) -> Failure {
        let checkpoint = self.start.trainer.checkpoint().filter(|checkpoint| checkpoint.exists());
        let Some(checkpoint) = checkpoint else { return error };
        let (checkpoint, command) = (checkpoint.display(), report::resume(&self.settings));
        format!("{error}\nnote: {checkpoint} is complete; to resume from it: {command}").into()
    }
}

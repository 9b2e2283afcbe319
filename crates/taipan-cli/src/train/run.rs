//! Step after step, with what is measured, shown and saved between them.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use taipan_lm::StepReport;

use super::metrics::{HeldOut, Metrics, Row, Timing, Training, push_timing};
use super::progress::{Progress, State};
use super::settings::Settings;
use super::start::Start;
use super::tensorboard::Events;
use super::warnings::Warnings;
use super::{curve, lock, report, sample, stop};
use crate::Failure;

/// Where checkpoints have [`Unlogged`] among the notes of the program.
const UNLOGGED: &str = "unlogged";

/// A run at work.
pub struct Run {
    settings: Settings,
    start: Start,
    metrics: Metrics,
    events: Option<Events>,
    progress: Progress,
    warnings: Warnings,
    began: Instant,
    /// Steps that were done when the program began.
    before: u64,
    held_out: Option<HeldOut>,
    unlogged: Unlogged,
    /// Steps of this program: since the last row, and in all.
    pace: Pace,
    all: Pace,
}

/// Steps, and the time that they alone took.
#[derive(Clone, Copy, Default)]
struct Pace {
    steps: u64,
    time: Duration,
}

impl Pace {
    fn add(&mut self, time: Duration) {
        self.steps += 1;
        self.time += time;
    }

    /// Tokens per second, of so many in a step.
    fn speed(self, tokens: u64) -> f64 {
        (self.steps * tokens) as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// The steps since the last regular row of metrics. A checkpoint has it, so that the next row is the same whether
/// the run was interrupted or not.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
struct Unlogged {
    steps: u64,
    losses: f64,
    /// The last row is of a stop between two regular ones.
    extra_row: bool,
}

/// Why there is no next step.
enum Ending {
    /// All are done.
    Done,
    /// The time is over.
    MaxTime,
    /// `--stop-after`, or a signal.
    Stopped,
}

impl Run {
    pub fn new(settings: Settings, start: Start) -> Result<Run, Failure> {
        let before = start.trainer.steps_done();
        let unlogged = start.trainer.notes.get(UNLOGGED).cloned().unwrap_or_default();
        let unlogged: Option<Unlogged> = serde_json::from_value(unlogged)?;
        let unlogged = unlogged.unwrap_or_default();
        let metrics = Metrics::open(&settings.out, before, unlogged.extra_row)?;
        let events = match settings.tensorboard {
            true => Some(Events::create(&settings.out, before)?),
            false => None,
        };
        Ok(Run {
            held_out: metrics.rows().iter().rev().find_map(|row| row.held_out),
            warnings: Warnings::new(&settings.out),
            settings,
            start,
            metrics,
            events,
            progress: Progress::new(),
            began: Instant::now(),
            before,
            unlogged: Unlogged { extra_row: false, ..unlogged },
            pace: Pace::default(),
            all: Pace::default(),
        })
    }

    /// Train until something ends it, and leave the model in the run directory.
    pub fn run(mut self) -> Result<(), Failure> {
        self.progress.print(&format!("{}\n", report::summary(&self.settings, &self.start)));
        if let Some(warning) = lock::warning(&self.settings.out) {
            self.warn(&warning);
        }
        let ending = match self.steps() {
            Ok(ending) => ending,
            Err(error) => return Err(self.with_way_back(error)),
        };
        if self.start.trainer.steps_done() == 0 {
            let resume = report::resume(&self.settings);
            self.progress
                .print(&format!("stopped before the first step; to begin again: {resume}\n"));
            return Ok(());
        }
        self.progress.note("writing the model");
        self.start.lock.check()?;
        self.start.trainer.export(&self.settings.out)?;
        self.progress.print("\n");
        let speed = self.all.speed(self.tokens());
        let results = report::results(self.metrics.rows(), self.began.elapsed(), speed);
        self.progress.print(&results);
        if !matches!(ending, Ending::Stopped) && self.settings.sample_tokens > 0 {
            self.progress.print("\n");
            let Run { progress, start, settings, .. } = &mut self;
            sample::sample(&start.trainer, settings, |text| progress.print(text))?;
            self.progress.print("\n");
        }
        let way_on = report::way_on(&self.settings, self.start.trainer.steps_done());
        self.progress.print(&format!("\n{way_on}"));
        self.hear_output();
        Ok(())
    }

    /// Something went wrong that does not concern the training: say so, once.
    fn warn(&mut self, warning: &str) {
        if self.warnings.push(warning) {
            self.progress.say(&format!("warning: {warning}"));
        }
    }

    /// Warn where a result is an error.
    fn tolerate(&mut self, result: Result<(), Failure>) {
        if let Err(error) = result {
            self.warn(&error.to_string());
        }
    }

    fn hear_output(&mut self) {
        if let Some(failure) = self.progress.failure() {
            self.warnings.push(&format!("{failure}; the run goes on without it"));
        }
    }

    /// Tokens of a step.
    fn tokens(&self) -> u64 {
        self.start.trainer.recipe().tokens() as u64
    }

    fn steps(&mut self) -> Result<Ending, Failure> {
        stop::begin();
        if self.before == 0
            && let Some(held_out) = self.evaluate()?
        {
            self.push(Row { step: 0, training: None, held_out: Some(held_out) }, None);
        }
        let mut ending = self.ending();
        if ending.is_some() && self.before > 0 {
            // The program that came so far may have been killed before all of it was there.
            self.save()?;
        }
        loop {
            if let Some(ending) = ending {
                return Ok(ending);
            }
            let began = Instant::now();
            let report = pollster::block_on(self.start.trainer.step())?;
            self.pace.add(began.elapsed());
            self.all.add(began.elapsed());
            ending = self.after(&report)?;
        }
    }

    fn ending(&self) -> Option<Ending> {
        let step = self.start.trainer.steps_done();
        let over = self.settings.max_time.is_some_and(|time| self.began.elapsed() >= time.0);
        if step == self.settings.steps {
            Some(Ending::Done)
        } else if Some(step) == self.settings.stop_after || stop::wanted() {
            Some(Ending::Stopped)
        } else {
            over.then_some(Ending::MaxTime)
        }
    }

    /// Measure, show and save what is due after a step. Whether it was the last one is asked once: a
    /// signal that comes later is for the next.
    fn after(&mut self, report: &StepReport) -> Result<Option<Ending>, Failure> {
        // f16 loses a step now and then, until its loss scale fits.
        if report.grad_norm.is_finite() {
            self.unlogged.steps += 1;
            self.unlogged.losses += report.loss;
        } else {
            self.progress.say(&format!(
                "step {}: skipped, since the gradient is not finite ({} so far); the loss scale is now {}",
                report.step, report.skipped, report.loss_scale
            ));
        }
        let ending = self.ending();
        let is_due = |interval| report.step.is_multiple_of(interval);
        let is_last = matches!(ending, Some(Ending::Done | Ending::MaxTime));
        let held_out = match is_due(self.settings.eval_interval) || is_last {
            true => self.evaluate()?,
            false => None,
        };
        let state = self.state(report);
        self.progress.step(&state);
        // A run that is not stopped has the same regular rows; the others are not kept when it goes on.
        let is_regular = is_due(self.settings.log_interval)
            || (is_due(self.settings.eval_interval) && held_out.is_some())
            || matches!(ending, Some(Ending::Done));
        if is_regular || ending.is_some() {
            self.progress.log(&state);
            let training = (self.unlogged.steps > 0).then(|| self.training(report, &state));
            match is_regular {
                true => self.unlogged = Unlogged::default(),
                false => self.unlogged.extra_row = true,
            }
            let timing = Timing {
                step: report.step,
                tokens_per_second: state.tokens_per_second,
                seconds: self.began.elapsed().as_secs_f64(),
            };
            self.pace = Pace::default();
            self.push(Row { step: report.step, training, held_out }, Some(timing));
        }
        if is_due(self.settings.save_interval) || ending.is_some() {
            self.save()?;
        }
        self.hear_output();
        Ok(ending)
    }

    fn state(&self, report: &StepReport) -> State {
        let Unlogged { steps, losses, .. } = self.unlogged;
        let last = self.settings.stop_after.unwrap_or(self.settings.steps);
        let elapsed = self.began.elapsed();
        let left = elapsed.as_secs_f64() / (report.step - self.before) as f64
            * (last - report.step) as f64;
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
        let until = self.settings.max_time.map(|time| time.0.saturating_sub(elapsed));
        State {
            step: report.step,
            steps: self.settings.steps,
            loss: if steps > 0 { losses / steps as f64 } else { report.loss },
            held_out: self.held_out,
            tokens_per_second: self.pace.speed(self.tokens()),
            lr: report.lr,
            grad_norm: report.grad_norm,
            left: until.map_or(left, |until| left.min(until)),
        }
    }

    fn training(&self, report: &StepReport, state: &State) -> Training {
        Training {
            loss: state.loss,
            lr: report.lr,
            grad_norm: Some(report.grad_norm).filter(|norm| norm.is_finite()),
            skipped: report.skipped,
            tokens: report.step * self.tokens(),
        }
    }

    /// How well the model does on held-out text, if there is any.
    fn evaluate(&mut self) -> Result<Option<HeldOut>, Failure> {
        if self.start.trainer.dataset().held_out_tokens() == 0 {
            return Ok(None);
        }
        if self.held_out.is_none() {
            self.progress.note("measuring on held-out text");
        }
        let tokens = self.settings.eval_tokens;
        let evaluation = pollster::block_on(self.start.trainer.evaluate(tokens))?;
        let (val_loss, bits_per_byte) = (evaluation.loss, evaluation.bits_per_byte);
        self.held_out = Some(HeldOut { val_loss, bits_per_byte });
        Ok(self.held_out)
    }

    /// Write a row to every log. What fails is written later, or is no loss.
    fn push(&mut self, row: Row, timing: Option<Timing>) {
        if let Some(events) = &mut self.events {
            let pushed = events.push(&row, timing.as_ref());
            self.tolerate(pushed);
        }
        if let Some(timing) = timing {
            let pushed = push_timing(&self.settings.out, &timing);
            self.tolerate(pushed);
        }
        let pushed = self.metrics.push(row);
        self.tolerate(pushed);
    }

    /// Save a checkpoint, after the metrics until then.
    fn save(&mut self) -> Result<(), Failure> {
        self.start.lock.check()?;
        self.metrics.sync()?;
        let Settings { out, keep, .. } = &self.settings;
        let trainer = &mut self.start.trainer;
        trainer.notes.insert(UNLOGGED.into(), serde_json::to_value(self.unlogged)?);
        let saved = trainer.save(out, *keep)?;
        let title = format!("{}, {}", out.display(), report::shape(trainer.model()));
        let picture = curve::svg(self.metrics.rows(), &title);
        let drawn = taipan_lm::write_file(&out.join(curve::FILE), picture.as_bytes());
        self.tolerate(drawn.map_err(Failure::from));
        for problem in saved.problems {
            self.warn(&format!("{problem}; it stays as it is"));
        }
        Ok(())
    }

    /// An error of a run, with what is left of it.
    fn with_way_back(&mut self, error: Failure) -> Failure {
        match self.start.trainer.checkpoint().filter(|checkpoint| checkpoint.exists()) {
            None => error,
            Some(checkpoint) => {
                let (checkpoint, command) = (checkpoint.display(), report::resume(&self.settings));
                format!("{error}\ntaipan: {checkpoint} is whole; to go on from it: {command}")
                    .into()
            }
        }
    }
}

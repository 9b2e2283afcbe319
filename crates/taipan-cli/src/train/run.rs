//! Step after step, with what is measured, shown and saved between them.

use std::time::{Duration, Instant};

use taipan_lm::StepReport;

use super::metrics::{HeldOut, Metrics, Row, Training};
use super::progress::{Progress, State};
use super::settings::Settings;
use super::start::Start;
use super::tensorboard::Events;
use super::{curve, replace, report, sample, stop};
use crate::Failure;

/// A run at work.
pub struct Run {
    settings: Settings,
    start: Start,
    metrics: Metrics,
    events: Option<Events>,
    progress: Progress,
    began: Instant,
    /// Steps that were done when the program began.
    before: u64,
    held_out: Option<HeldOut>,
    since: Since,
    /// Time of steps alone.
    training: Duration,
}

/// The steps since the last row of metrics.
#[derive(Default)]
struct Since {
    steps: u64,
    losses: f64,
    time: Duration,
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
        let metrics = Metrics::open(&settings.out, before)?;
        let events = match settings.tensorboard {
            true => Some(Events::create(&settings.out, before)?),
            false => None,
        };
        Ok(Run {
            held_out: metrics.rows().iter().rev().find_map(|row| row.held_out),
            settings,
            start,
            metrics,
            events,
            progress: Progress::new(),
            began: Instant::now(),
            before,
            since: Since::default(),
            training: Duration::ZERO,
        })
    }

    /// Train until something ends it, and leave the model in the run directory.
    pub fn run(mut self) -> Result<(), Failure> {
        crate::print(&format!("{}\n", report::summary(&self.settings, &self.start)))?;
        let ending = match self.steps() {
            Ok(ending) => ending,
            Err(error) => return Err(self.with_way_back(error)),
        };
        self.progress.note("writing the model")?;
        self.start.trainer.export(&self.settings.out)?;
        self.progress.say("")?;
        let steps = self.start.trainer.steps_done() - self.before;
        let speed = (steps * self.tokens()) as f64 / self.training.as_secs_f64().max(1e-9);
        crate::print(&report::results(self.metrics.rows(), self.began.elapsed(), speed))?;
        if !matches!(ending, Ending::Stopped) && self.settings.sample_tokens > 0 {
            crate::print("\n")?;
            sample::sample(&self.start.trainer, &self.settings, crate::print)?;
            crate::print("\n")?;
        }
        let way_on = report::way_on(&self.settings, self.start.trainer.steps_done());
        Ok(crate::print(&format!("\n{way_on}"))?)
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
            self.push(Row { step: 0, training: None, held_out: Some(held_out) })?;
        }
        let mut ending = self.ending();
        loop {
            if let Some(ending) = ending {
                return Ok(ending);
            }
            let began = Instant::now();
            let report = pollster::block_on(self.start.trainer.step())?;
            self.since.time += began.elapsed();
            self.training += began.elapsed();
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
            self.since.steps += 1;
            self.since.losses += report.loss;
        } else {
            self.progress.say(&format!(
                "step {}: skipped, since the gradient is not finite ({} so far); the loss scale is now {}",
                report.step, report.skipped, report.loss_scale
            ))?;
        }
        let ending = self.ending();
        let is_due = |interval| report.step.is_multiple_of(interval) || ending.is_some();
        let held_out = match report.step.is_multiple_of(self.settings.eval_interval)
            || matches!(ending, Some(Ending::Done | Ending::MaxTime))
        {
            true => self.evaluate()?,
            false => None,
        };
        let state = self.state(report);
        self.progress.step(&state)?;
        if is_due(self.settings.log_interval) || held_out.is_some() {
            self.progress.log(&state)?;
            let training = (self.since.steps > 0).then(|| self.training(report, &state));
            self.since = Since::default();
            self.push(Row { step: report.step, training, held_out })?;
        }
        if is_due(self.settings.save_interval) {
            self.save()?;
        }
        Ok(ending)
    }

    fn state(&self, report: &StepReport) -> State {
        let Since { steps, losses, time } = self.since;
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
            tokens_per_second: (steps.max(1) * self.tokens()) as f64 / time.as_secs_f64().max(1e-9),
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
            tokens_per_second: state.tokens_per_second,
            seconds: self.began.elapsed().as_secs_f64(),
        }
    }

    /// How well the model does on held-out text, if there is any.
    fn evaluate(&mut self) -> Result<Option<HeldOut>, Failure> {
        if self.start.trainer.dataset().held_out_tokens() == 0 {
            return Ok(None);
        }
        if self.held_out.is_none() {
            self.progress.note("measuring on held-out text")?;
        }
        let tokens = self.settings.eval_tokens;
        let evaluation = pollster::block_on(self.start.trainer.evaluate(tokens))?;
        let (val_loss, bits_per_byte) = (evaluation.loss, evaluation.bits_per_byte);
        self.held_out = Some(HeldOut { val_loss, bits_per_byte });
        Ok(self.held_out)
    }

    fn push(&mut self, row: Row) -> Result<(), Failure> {
        if let Some(events) = &mut self.events {
            events.push(&row)?;
        }
        self.metrics.push(row)
    }

    fn save(&mut self) -> Result<(), Failure> {
        let Settings { out, keep, .. } = &self.settings;
        self.start.trainer.save(out, *keep)?;
        let title = format!("{}, {}", out.display(), report::shape(self.start.trainer.model()));
        replace(&out.join("loss.svg"), curve::svg(self.metrics.rows(), &title).as_bytes())
    }

    /// An error of a run, with what is left of it.
    fn with_way_back(&mut self, error: Failure) -> Failure {
        match self.start.trainer.checkpoint() {
            None => error,
            Some(checkpoint) => {
                let (checkpoint, command) = (checkpoint.display(), report::resume(&self.settings));
                format!("{error}\ntaipan: {checkpoint} is whole; to go on from it: {command}")
                    .into()
            }
        }
    }
}

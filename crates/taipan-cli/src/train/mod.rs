//! `taipan train`.

mod console;
mod corpus;
mod curve;
mod declare;
mod lock;
mod lr_find;
mod metrics;
mod overwrite;
mod plot;
mod progress;
mod report;
mod run;
mod sample;
mod settings;
mod settings_file;
mod sparkline;
mod start;
mod tensorboard;
mod together;
mod values;

use std::ops::ControlFlow;

use taipan::{DType, Device};

use self::run::Run;
use self::settings::Settings;
pub use self::settings::{Flags, show_defaults};
pub use self::start::DATA;
use self::start::{Existing, Start};
use crate::job::{self, Job, Place};
use crate::{Failure, machine, stop, usage};

/// Train a model, resume its training, or look for its learning rate. A run that a signal stopped
/// ends the program with its exit code.
pub fn train(flags: &Flags) -> Result<(), Failure> {
    stop::listen()?;
    match job::run(|job| train_in(job, flags))? {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => std::process::exit(stop::INTERRUPTED),
    }
}

/// In one of the processes of a job. Whether a signal stopped it.
fn train_in(job: Job, flags: &Flags) -> Result<ControlFlow<()>, Failure> {
    let mut settings = match flags.resume {
        true => Settings::resumed(flags, job.size())?,
        false => Settings::new(flags, job.size())?,
    };
    machine::with_threads(settings.threads.or(job.threads), || {
        let device = machine::open_local(&settings.device, job.local_rank)?;
        machine::check(&device, DType::from(settings.dtype))?;
        // A run is resumed on the same kind of device.
        settings.device = match settings.device.as_str() {
            machine::AUTO => device.name().into(),
            name => name.into(),
        };
        let (size, place) = (job.size(), job.place());
        if flags.lr_find && size > 1 {
            return usage(format!("--lr-find is for one process, but there are {size}"));
        }
        if flags.lr_find {
            return lr_find::find(&settings, &device);
        }
        if let Some(ranks) = job.ranks.filter(|_| size > 1) {
            let start = |settings: &Settings| start(settings, &device, flags, place);
            return together::train(&settings, &device, ranks, start);
        }
        let start = start(&settings, &device, flags, Place::ALONE)?;
        let (_, stopped) = Run::new(settings, start)?.run()?;
        Ok(stopped)
    })
}

/// Begin or resume a run, as the flags say, of so many processes.
fn start(
    settings: &Settings,
    device: &Device,
    flags: &Flags,
    place: Place,
) -> Result<Start, Failure> {
    match (flags.resume, flags.overwrite) {
        (true, _) => start::resume(settings, device, place),
        (false, false) => start::begin(settings, device, Existing::Refuse, place),
        (false, true) => start::begin(settings, device, Existing::Overwrite, place),
    }
}

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
mod values;

use std::ops::ControlFlow;

use taipan::DType;

use self::run::Run;
use self::settings::Settings;
pub use self::settings::{Flags, show_defaults};
pub use self::start::DATA;
use self::start::Existing;
use crate::Failure;
use crate::{machine, stop};

/// Train a model, resume its training, or look for its learning rate. A run that a signal stopped
/// ends the program with its exit code.
pub fn train(flags: &Flags) -> Result<(), Failure> {
    stop::listen()?;
    let mut settings = if flags.resume { Settings::resumed(flags) } else { Settings::new(flags) }?;
    let interrupted = machine::with_threads(settings.threads, || {
        let device = machine::open(&settings.device)?;
        machine::check(&device, DType::from(settings.dtype))?;
        // A run is resumed on the same kind of device.
        settings.device = match settings.device.as_str() {
            machine::AUTO => device.name().into(),
            name => name.into(),
        };
        if flags.lr_find {
            return lr_find::find(&settings, &device);
        }
        let start = match (flags.resume, flags.overwrite) {
            (true, _) => start::resume(&settings, &device)?,
            (false, false) => start::begin(&settings, &device, Existing::Refuse)?,
            (false, true) => start::begin(&settings, &device, Existing::Overwrite)?,
        };
        Run::new(settings, start)?.run()
    })?;
    match interrupted {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => std::process::exit(stop::INTERRUPTED),
    }
}

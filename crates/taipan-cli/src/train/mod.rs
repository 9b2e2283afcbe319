//! `taipan train`.

mod console;
mod corpus;
mod curve;
mod declare;
mod lock;
mod metrics;
mod progress;
mod report;
mod run;
mod sample;
mod settings;
mod sparkline;
mod start;
mod tensorboard;
mod values;

use self::run::Run;
use self::settings::Settings;
pub use self::settings::{Flags, show_defaults};
pub use self::start::DATA;
use crate::Failure;
use crate::{machine, stop};

/// Train a model, or resume its training.
pub fn train(flags: &Flags) -> Result<(), Failure> {
    stop::listen()?;
    let settings = if flags.resume { Settings::resumed(flags) } else { Settings::new(flags) }?;
    machine::with_threads(settings.threads, || {
        let device = machine::device(&settings.device, settings.dtype)?;
        let start = if flags.resume { start::resume } else { start::begin };
        let start = start(&settings, &device)?;
        Run::new(settings, start)?.run()
    })
}

//! `taipan train`.

mod corpus;
mod curve;
mod flags;
mod metrics;
mod progress;
mod report;
mod run;
mod sample;
mod settings;
mod sparkline;
mod start;
mod stop;
mod tensorboard;

use std::path::Path;

pub use self::flags::Flags;
use self::run::Run;
use self::settings::Settings;
pub use self::settings::show_defaults;
use crate::Failure;
use crate::machine;

/// Train a model, or go on training it.
pub fn train(flags: &Flags) -> Result<(), Failure> {
    stop::listen()?;
    let settings = match flags.resume {
        true => Settings::resumed(flags)?,
        false => Settings::new(flags)?,
    };
    machine::with_threads(settings.threads, || {
        let device = machine::device(&settings.device, settings.dtype)?;
        let start = match flags.resume {
            true => start::resume(&settings, &device)?,
            false => start::begin(&settings, &device)?,
        };
        Run::new(settings, start)?.run()
    })
}

/// Write a file so that it is there whole or as it was.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let beside = path.with_added_extension("new");
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    Ok(written.map_err(|error| format!("{}: {error}", path.display()))?)
}

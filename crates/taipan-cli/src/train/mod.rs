//! `taipan train`.

mod corpus;
mod curve;
mod flags;
mod metrics;
mod progress;
mod settings;
mod sparkline;
mod stop;
mod tensorboard;

use std::error::Error;
use std::path::Path;

pub use self::flags::Flags;
pub use self::settings::show_defaults;

/// Write a file so that it is there whole or as it was.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let beside = path.with_added_extension(format!("tmp-{}", std::process::id()));
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    Ok(written.map_err(|error| format!("{}: {error}", path.display()))?)
}

pub fn train(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let settings = if flags.resume {
        settings::Settings::resumed(flags)?
    } else {
        settings::Settings::new(flags)?
    };
    println!("{settings:?}");
    Ok(())
}

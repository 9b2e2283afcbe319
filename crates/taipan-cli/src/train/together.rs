//! A run of several processes: the first one writes the files and shows the progress.

use std::ops::ControlFlow;

use taipan::{DType, Device};
use taipan_lm::{Ranks, Tokenizer, check_same, gather};
use toml::Table;

use super::Run;
use super::settings::Settings;
use super::start::{Start, follow};
use crate::{Failure, stop};

/// Train as one of these processes, of which the first starts the run. Whether a signal stopped it.
pub fn train(
    settings: &Settings,
    device: &Device,
    mut ranks: Box<dyn Ranks>,
    start: impl FnOnce(&Settings) -> Result<Start, Failure>,
) -> Result<ControlFlow<()>, Failure> {
    check_flags(&mut *ranks, settings)?;
    let reduce_dtype = settings.reduce_dtype.map(DType::from);
    if ranks.rank() == 0 {
        let mut start = start(settings)?;
        // The others wait for this, while the text is tokenised.
        gather(&mut *ranks, start.trainer.tokenizer().to_json().as_bytes())?;
        start.trainer = pollster::block_on(start.trainer.join(ranks, reduce_dtype))?;
        let (mut trainer, stopped) = Run::new(settings.clone(), start)?.run()?;
        trainer.end()?;
        return Ok(stopped);
    }
    let first = gather(&mut *ranks, &[])?.swap_remove(0);
    let tokenizer = Tokenizer::from_json(&String::from_utf8_lossy(&first))?;
    let trainer = follow(settings, device, tokenizer)?;
    let mut trainer = pollster::block_on(trainer.join(ranks, reduce_dtype))?;
    stop::begin();
    pollster::block_on(trainer.follow(stop::requested))?;
    Ok(ControlFlow::Continue(()))
}

/// An error unless all processes have the same version and flags, but for those that may differ
/// from machine to machine.
fn check_flags(ranks: &mut dyn Ranks, settings: &Settings) -> Result<(), Failure> {
    let mut table = Table::try_from(settings)?;
    table.retain(|key, _| !["threads", "device"].contains(&key));
    let mut own = vec![("the version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    own.extend(table.iter().map(|(key, value)| (format!("--{key}"), value.to_string())));
    let own: Vec<(&str, String)> =
        own.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    Ok(check_same(ranks, &own)?)
}

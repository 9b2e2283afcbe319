//! `train.toml`, the settings of a run in its directory, and their copy in checkpoints.
//!
//! What the user specified comes first, in the format of `--config`; the rest follows from it, and
//! is read by `--resume` alone: on top of the first part, other flags have other consequences.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value as Json};
use taipan_lm::checksum;
use toml::{Table, Value};

use super::settings::{Flags, Scope, Settings};
use crate::{Failure, usage};

/// The name of the file.
pub const FILE: &str = "train.toml";

/// The key of the settings in the notes of checkpoints.
pub const NOTE: &str = "settings";

impl Settings {
    /// Write them to the directory of the run.
    pub fn save(&self) -> Result<(), Failure> {
        let (all, specified) = (Table::try_from(self)?, Table::try_from(&self.specified)?);
        // Next to --from, which determines the shape, --preset is refused.
        let is_of_the_run = |key: &str| {
            Scope::of(key) != Some(Scope::Call) && (key != "preset" || self.from.is_none())
        };
        let mut parts = [String::new(), String::new()];
        for (key, value) in all.iter().filter(|(key, _)| is_of_the_run(key)) {
            let given = specified.get(key);
            let part = &mut parts[usize::from(given.is_none())];
            let _ = writeln!(part, "{key} = {}", shown(given.unwrap_or(value)));
        }
        let [specified, derived] = parts;
        let text = format!(
            "# taipan train --config {FILE} repeats this run.\n{specified}\n\
             # What follows from this and the defaults: read by --resume, not by --config.\n\
             [derived]\n{derived}"
        );
        Ok(taipan_lm::write_file(&self.out.join(FILE), text.as_bytes())?)
    }

    /// What must not change when the run is resumed. Of paths only checksums: checkpoints are
    /// shared with people whom the paths do not concern.
    pub fn fixed(&self) -> Result<Map<String, Json>, Failure> {
        let mut table = Table::try_from(self)?;
        table.retain(|key, _| Scope::of(key).is_some_and(|scope| !scope.may_change()));
        let value = |(key, value): (String, Value)| {
            let value = match Scope::of(&key) {
                Some(Scope::RunPath) => checksum(value.to_string().as_bytes()).into(),
                _ => serde_json::to_value(value)?,
            };
            Ok((key, value))
        };
        table.into_iter().map(value).collect()
    }

    /// An error if these settings, which are those of [`FILE`], are not those of the checkpoint.
    pub fn check_unchanged(&self, notes: &Map<String, Json>) -> Result<(), Failure> {
        let none = Map::new();
        let expected = notes.get(NOTE).and_then(Json::as_object).unwrap_or(&none);
        let found = self.fixed()?;
        let mut keys = expected.keys().chain(found.keys());
        let Some(key) = keys.find(|key| found.get(*key) != expected.get(*key)) else {
            return Ok(());
        };
        let path = self.out.join(FILE);
        let shown = |value: Option<&Json>| value.map_or("none".into(), Json::to_string);
        let (found, expected) = (shown(found.get(key)), shown(expected.get(key)));
        let difference = match Scope::of(key) {
            Some(Scope::RunPath) => format!("{key} is not what it was when the run began"),
            _ => format!("{key} is {found}, but the run began with {expected}"),
        };
        let what = "it was edited; to change a setting, use the flags that --resume allows";
        usage(format!("{}: {difference}; {what}", path.display()))
    }
}

/// A value as in the file, and in the help.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Float(number) if *number != 0.0 && number.abs() < 1e-3 => format!("{number:e}"),
        value => value.to_string(),
    }
}

/// The flags in a file, with `what` in front of the error if it cannot be read. Unknown keys and
/// wrong types are reported with their lines.
pub fn read(path: &Path, what: &str) -> Result<Flags, Failure> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{what}: {file}: {error}"))?;
    toml::from_str(&text).or_else(|error| usage(format!("{file}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_are_short_and_read_back() {
        for (number, text) in [(1e-8, "1e-8"), (3e-4, "3e-4"), (0.05, "0.05"), (1.0, "1.0")] {
            assert_eq!(shown(&number.into()), text);
            let read: Table = toml::from_str(&format!("x = {text}")).unwrap();
            assert_eq!(read["x"].as_float(), Some(number));
        }
    }
}

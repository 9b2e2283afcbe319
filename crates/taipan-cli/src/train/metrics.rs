//! `metrics.jsonl`: the metrics of a run, one JSON object per line. It has no times in it, so that
//! a run that was interrupted writes the same bytes as one that was not; these are in
//! `timings.jsonl`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use taipan_lm::Error;

use crate::Failure;

pub const FILE: &str = "metrics.jsonl";
pub const TIMINGS: &str = "timings.jsonl";

/// The metrics of a step: of training, of held-out text, or of both.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Row {
    /// Steps done.
    pub step: u64,
    #[serde(flatten)]
    pub training: Option<Training>,
    #[serde(flatten)]
    pub held_out: Option<HeldOut>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Training {
    /// The mean over the steps since the last row, in nats per token.
    pub loss: f64,
    pub lr: f64,
    /// Before clipping; none where it is not finite.
    pub grad_norm: Option<f64>,
    /// Steps so far that were skipped since a gradient was not finite.
    pub skipped: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct HeldOut {
    /// In nats per token.
    pub val_loss: f64,
    /// None if the tokens have no bytes of text.
    pub bits_per_byte: Option<f64>,
}

/// A line of `timings.jsonl`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timing {
    pub step: u64,
    pub tokens_per_second: f64,
    /// Since the program began.
    pub seconds: f64,
}

/// A file of JSON, one value per line. It stays open: a directory that takes the place of the run's
/// gets nothing.
pub struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    /// Open the file, or create it.
    pub fn open(path: &Path) -> Result<Lines, Failure> {
        let file = File::options().create(true).append(true).open(path);
        Ok(Lines { file: file.map_err(Error::io(path))?, path: path.to_owned() })
    }

    pub fn push(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        // In one call: a line is there or is not.
        let line = serde_json::to_string(value)? + "\n";
        Ok(self.file.write_all(line.as_bytes()).map_err(Error::io(&self.path))?)
    }
}

/// The file and what is in it.
pub struct Metrics {
    path: PathBuf,
    /// None after a failure: then the file is rewritten with all rows.
    lines: Option<Lines>,
    pub rows: Vec<Row>,
}

impl Metrics {
    /// The metrics of the run in a directory until a step. Later rows are removed, since these
    /// steps will be repeated; for step 0, all are. `extra` says that the last row is of a stop
    /// between two regular ones, and is removed as well.
    pub fn open(directory: &Path, step: u64, extra: bool) -> Result<Metrics, Failure> {
        let path = directory.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.map_err(Error::io(&path))?,
        };
        let mut rows = Vec::new();
        // An incomplete line of a killed program is after every checkpoint.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let number = rows.len() + 1;
            let row: Row = serde_json::from_str(line)
                .map_err(|error| format!("{}: line {number}: {error}", path.display()))?;
            if row.step > step || step == 0 {
                break;
            }
            rows.push(row);
        }
        rows.pop_if(|last| extra && last.step == step);
        let rest: String = text.split_inclusive('\n').take(rows.len()).collect();
        taipan_lm::write_file(&path, rest.as_bytes())?;
        Ok(Metrics { lines: Some(Lines::open(&path)?), path, rows })
    }

    /// Add a row. After an error it is in memory, and written with the next one or by
    /// [`Metrics::sync`].
    pub fn push(&mut self, row: Row) -> Result<(), Failure> {
        self.rows.push(row.clone());
        let Some(mut lines) = self.lines.take() else { return self.rewrite() };
        lines.push(&row)?;
        self.lines = Some(lines);
        Ok(())
    }

    /// Flush all rows to the disk.
    pub fn sync(&mut self) -> Result<(), Failure> {
        match &self.lines {
            None => self.rewrite(),
            Some(lines) => Ok(lines.file.sync_data().map_err(Error::io(&self.path))?),
        }
    }

    fn rewrite(&mut self) -> Result<(), Failure> {
        let lines = self.rows.iter().map(|row| Ok(serde_json::to_string(row)? + "\n"));
        let text = lines.collect::<Result<String, Failure>>()?;
        taipan_lm::write_file(&self.path, text.as_bytes())?;
        self.lines = Some(Lines::open(&self.path)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64) -> Row {
        let training = Training {
            loss: 1.0 / step as f64,
            lr: 1e-3,
            grad_norm: step.is_multiple_of(2).then_some(0.5),
            skipped: 0,
            tokens: step * 10,
        };
        let held_out = HeldOut { val_loss: 2.0, bits_per_byte: Some(3.0) };
        Row { step, training: Some(training), held_out: (step == 2).then_some(held_out) }
    }

    #[test]
    fn a_row_that_could_not_be_written_comes_with_the_next() {
        let directory = std::env::temp_dir().join(format!("taipan-rows-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut metrics = Metrics::open(&directory, 0, false).unwrap();
        metrics.push(row(1)).unwrap();
        // Opened to read, it cannot be written to.
        metrics.lines.as_mut().unwrap().file = File::open(&metrics.path).unwrap();
        metrics.push(row(2)).unwrap_err();
        metrics.push(row(3)).unwrap();
        let lines = std::fs::read_to_string(&metrics.path).unwrap().lines().count();
        assert_eq!(lines, 3, "before anything is synced");
        metrics.sync().unwrap();
        let again = Metrics::open(&directory, 9, false).unwrap();
        assert_eq!(again.rows, [row(1), row(2), row(3)]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn text_without_bytes_has_no_bits_per_byte() {
        let held_out = HeldOut { val_loss: 2.0, bits_per_byte: None };
        let row = Row { step: 4, training: None, held_out: Some(held_out) };
        let json = serde_json::to_string(&row).unwrap();
        assert_eq!(json, r#"{"step":4,"val_loss":2.0,"bits_per_byte":null}"#);
        assert_eq!(serde_json::from_str::<Row>(&json).unwrap(), row);
    }

    #[test]
    fn rows_after_the_checkpoint_and_half_a_line_are_dropped() {
        let directory = std::env::temp_dir().join(format!("taipan-metrics-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut metrics = Metrics::open(&directory, 0, false).unwrap();
        metrics.push(Row { step: 0, training: None, held_out: row(2).held_out }).unwrap();
        (1..=4).for_each(|step| metrics.push(row(step)).unwrap());
        write!(metrics.lines.as_mut().unwrap().file, "{{\"step\": 5").unwrap();
        let mut again = Metrics::open(&directory, 2, false).unwrap();
        assert_eq!(again.rows, &metrics.rows[..3]);
        again.push(row(3)).unwrap();
        let text = std::fs::read_to_string(directory.join(FILE)).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(
            text.starts_with("{\"step\":0,\"val_loss\":2.0,\"bits_per_byte\":3.0}\n"),
            "{text}"
        );
        assert_eq!(Metrics::open(&directory, 9, false).unwrap().rows, again.rows);
        assert_eq!(Metrics::open(&directory, 9, true).unwrap().rows, again.rows);
        let without = Metrics::open(&directory, 3, true).unwrap();
        assert_eq!(without.rows, &again.rows[..3], "a row between two regular ones goes");
        assert_eq!(Metrics::open(&directory, 0, false).unwrap().rows, []);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

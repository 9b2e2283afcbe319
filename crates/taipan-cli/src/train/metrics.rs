//! `metrics.jsonl`: what a run measured, one JSON object per line.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Failure;
use serde::{Deserialize, Serialize};

const FILE: &str = "metrics.jsonl";

/// What is known at a step: of training, of held-out text, or of both.
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
    /// Tokens learnt from so far.
    pub tokens: u64,
    pub tokens_per_second: f64,
    /// Since the program began.
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct HeldOut {
    /// In nats per token.
    pub val_loss: f64,
    pub bits_per_byte: f64,
}

/// The file and what is in it.
pub struct Metrics {
    path: PathBuf,
    file: File,
    rows: Vec<Row>,
}

impl Metrics {
    /// The metrics of the run in a directory until a step. What was measured after it will be measured
    /// again, and of a run that begins anew everything.
    pub fn open(directory: &Path, step: u64) -> Result<Metrics, Failure> {
        let path = directory.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.map_err(named(&path))?,
        };
        let mut rows = Vec::new();
        // A line that a killed program left without its end is after every checkpoint.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let number = rows.len() + 1;
            let row: Row = serde_json::from_str(line)
                .map_err(|error| format!("{}: line {number}: {error}", path.display()))?;
            if row.step > step || step == 0 {
                break;
            }
            rows.push(row);
        }
        let kept: String = text.split_inclusive('\n').take(rows.len()).collect();
        super::replace(&path, kept.as_bytes())?;
        let file = File::options().append(true).open(&path).map_err(named(&path))?;
        Ok(Metrics { path, file, rows })
    }

    pub fn push(&mut self, row: Row) -> Result<(), Failure> {
        // In one call: a line is there or is not.
        let line = serde_json::to_string(&row)? + "\n";
        self.file.write_all(line.as_bytes()).map_err(named(&self.path))?;
        self.rows.push(row);
        Ok(())
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }
}

fn named(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
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
            tokens_per_second: 5.0,
            seconds: 2.0 * step as f64,
        };
        let held_out = HeldOut { val_loss: 2.0, bits_per_byte: 3.0 };
        Row { step, training: Some(training), held_out: (step == 2).then_some(held_out) }
    }

    #[test]
    fn rows_after_the_checkpoint_and_half_a_line_are_dropped() {
        let directory = std::env::temp_dir().join(format!("taipan-metrics-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut metrics = Metrics::open(&directory, 0).unwrap();
        metrics.push(Row { step: 0, training: None, held_out: row(2).held_out }).unwrap();
        (1..=4).for_each(|step| metrics.push(row(step)).unwrap());
        write!(metrics.file, "{{\"step\": 5").unwrap();
        let mut again = Metrics::open(&directory, 2).unwrap();
        assert_eq!(again.rows(), &metrics.rows()[..3]);
        again.push(row(3)).unwrap();
        let text = std::fs::read_to_string(directory.join(FILE)).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(
            text.starts_with("{\"step\":0,\"val_loss\":2.0,\"bits_per_byte\":3.0}\n"),
            "{text}"
        );
        assert_eq!(Metrics::open(&directory, 9).unwrap().rows(), again.rows());
        assert_eq!(Metrics::open(&directory, 0).unwrap().rows(), []);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

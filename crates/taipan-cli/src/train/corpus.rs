//! The training text, and how its preparation is shown.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use taipan_lm::data::{Encoding, FindOptions, OnProgress, Progress, Sources, Stage};

use super::progress::{self, duration};
use super::settings::Settings;
use crate::Failure;

/// The sources this program was built from, by name: a megabyte of Rust, WGSL, Python and prose.
const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/corpus.rs"));

/// The training text when no files are given.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Corpus {
    /// Little stories, the same in every version
    #[default]
    Stories,
    /// The sources this program was built from
    Sources,
}

/// Tokens of the tokenizer that is trained on the stories: nearly a word each.
pub const STORIES_VOCABULARY: usize = 1024;

/// Whether the training text is the stories.
pub fn is_stories(settings: &Settings) -> bool {
    settings.files.is_empty() && settings.corpus.unwrap_or_default() == Corpus::Stories
}

/// The training text, without the files in the run's own directory. Its preparation is shown.
pub fn sources(settings: &Settings) -> Result<Sources, Failure> {
    let display = Mutex::new(Display::new());
    let on_progress = OnProgress::new(move |progress| {
        display.lock().expect("nobody panics with it").show(progress);
    });
    Ok(match (settings.files.as_slice(), settings.corpus.unwrap_or_default()) {
        ([], Corpus::Stories) => Sources::stories().on_progress(on_progress),
        ([], Corpus::Sources) => Sources::texts(SOURCES.iter().copied()).on_progress(on_progress),
        (files, _) => {
            let mut options = FindOptions {
                outside: Some(settings.out.clone()),
                temporary: settings.out.clone(),
                on_progress,
                ..FindOptions::default()
            };
            if let Some(key) = &settings.text_key {
                options.text_key = key.clone();
            }
            if settings.strict == Some(true) {
                options.encoding = Encoding::Strict;
            }
            options.find(files)?
        }
    })
}

/// The minimum time between two messages, on a terminal and elsewhere.
const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// What is done with the text, if that takes a while: on a terminal a line that is redrawn in place
/// and removed at the end, elsewhere a line now and then.
struct Display {
    terminal: progress::Progress,
    stage: Option<(Stage, Instant)>,
    shown: Instant,
}

impl Display {
    fn new() -> Display {
        Display { terminal: progress::Progress::new(), stage: None, shown: Instant::now() }
    }

    fn show(&mut self, progress: Progress) {
        let began = match self.stage {
            Some((stage, began)) if stage == progress.stage => began,
            _ => {
                let now = Instant::now();
                self.stage = Some((progress.stage, now));
                now
            }
        };
        let is_done = progress.done == progress.total;
        let is_terminal = self.terminal.is_terminal();
        if is_done {
            self.terminal.clear();
        } else if self.shown.elapsed() >= INTERVALS[usize::from(!is_terminal)] {
            self.shown = Instant::now();
            let message = message(&progress, began.elapsed());
            match is_terminal {
                true => self.terminal.note(&message),
                false => self.terminal.log_line(&message),
            }
        }
    }
}

/// `tokenising: 12 of 18 MiB, 3s left`
fn message(progress: &Progress, elapsed: Duration) -> String {
    let Progress { stage, done, total } = *progress;
    let (what, unit): (_, fn(u64) -> String) = match stage {
        Stage::Reading => ("reading", crate::bytes),
        Stage::CountingWords => ("training a tokenizer, counting words", crate::bytes),
        Stage::Merging => ("training a tokenizer", |tokens| format!("{tokens} tokens")),
        _ => ("tokenising", crate::bytes),
    };
    let left = elapsed.as_secs_f64() * (total as f64 / done.max(1) as f64 - 1.0);
    match total {
        0 => format!("{what}: {}", unit(done)),
        _ => {
            let left = duration(Duration::from_secs_f64(left.max(0.0)));
            format!("{what}: {} of {}, {left} left", unit(done), unit(total))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_sorted_and_have_this_file() {
        assert!(SOURCES.is_sorted_by(|a, b| a.0 < b.0), "sorted, and no name twice");
        let is_this = |name: &str| name.ends_with("src/train/corpus.rs");
        let (_, text) = SOURCES.iter().find(|(name, _)| is_this(name)).unwrap();
        assert!(text.starts_with("//! The training text"));
        assert!(SOURCES.iter().all(|(name, _)| !name.split('/').any(|part| part == "target")));
    }

    #[test]
    fn messages_say_how_far_it_is() {
        let show =
            |stage, done, total| message(&Progress { stage, done, total }, Duration::from_secs(3));
        assert_eq!(show(Stage::Reading, 3 << 20, 0), "reading: 3 MiB");
        assert_eq!(
            show(Stage::Tokenising, 6 << 20, 18 << 20),
            "tokenising: 6 MiB of 18 MiB, 6s left"
        );
        assert_eq!(
            show(Stage::Merging, 0, 8000),
            "training a tokenizer: 0 tokens of 8000 tokens, 6h39m left"
        );
    }
}

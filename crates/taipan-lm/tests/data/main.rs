//! Text to tokens, and tokens to batches.

mod cache;
#[path = "../common/mod.rs"]
mod common;
mod formats;
mod order;
mod sources;
mod split;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use taipan_lm::data::{Dataset, Encoding, FindOptions, Order, Reason, Sources, Split};
use taipan_lm::{Batch, IGNORE, Tokenizer};

use common::letters_without_eos;

/// A directory for one test, removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("taipan-data-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Document `i` is `sizes[i]` times the letter `i`, from `A` on.
fn letters(sizes: &[usize]) -> Sources {
    let text = |(i, size): (usize, &usize)| (format!("{i}"), letter(i).repeat(*size));
    Sources::texts(sizes.iter().enumerate().map(text))
}

fn letter(i: usize) -> String {
    char::from_u32('A' as u32 + i as u32).unwrap().to_string()
}

const ALL: Split = Split { held_out: 0.0, min_bytes: 0, seed: 0 };

/// Words without end, the same for the same seed.
fn words(seed: u64, bytes: usize) -> String {
    let (mut state, mut text) = (seed, String::new());
    while text.len() < bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let word = ["the ", "cat", "né\n", "  if x {", "日本語", "\r\n", "0042 ", "🙂", "wörter"];
        text += word[(state >> 33) as usize % word.len()];
    }
    text
}

fn build(directory: &Directory, sources: &Sources, split: &Split) -> Dataset {
    Dataset::build(directory.cache(), sources, &Tokenizer::bytes(), split).unwrap()
}

fn error<T>(result: taipan_lm::Result<T>) -> String {
    result.err().expect("an error").to_string()
}

/// Bytes of the training text, by decoding all of it.
fn data_train_bytes(data: &Dataset, tokenizer: &Tokenizer) -> u64 {
    let order = Order { seed: 0, batch_size: 1, block_size: data.train_tokens() as usize };
    let mut ids = data.batch(&order, 0).unwrap().ids;
    let first = ids.iter().position(|id| *id == 0).unwrap();
    ids.rotate_left(first);
    ids.retain(|id| *id != 0);
    tokenizer.decode(&ids).unwrap().len() as u64
}

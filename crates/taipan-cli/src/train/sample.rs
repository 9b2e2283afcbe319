//! Samples of generated text.

use std::ops::ControlFlow;

use taipan_lm::data::Order;
use taipan_lm::{CompletionOptions, Generation, Sampler, Trainer};

use super::settings::Settings;
use crate::Failure;
use crate::generate::{TEMPERATURE, printable};

/// Tokens of the training data that a prompt is taken from, and the length of a prompt in
/// characters, at most.
const TOKENS: usize = 256;
const LENGTH: usize = 32;

/// The prompt of the samples: that of the settings, or the beginning of the held-out text, or else
/// some training text.
pub fn prompt(trainer: &Trainer, settings: &Settings) -> Result<String, Failure> {
    if let Some(prompt) = &settings.sample {
        return Ok(prompt.clone());
    }
    let (data, tokens) = (trainer.dataset(), TOKENS.min(settings.block_size));
    let batch = match data.held_out(1, tokens, tokens as u64).next() {
        Some(batch) => batch?.0,
        None => data.batch(&Order { seed: settings.seed, batch_size: 1, block_size: tokens }, 0)?,
    };
    // One document, without the token before it.
    let starts = batch.seq_start.iter().skip(1).position(|start| *start == 1);
    let ids = &batch.ids[..starts.map_or(batch.ids.len(), |next| next + 1)];
    let eos_token_id = trainer.tokenizer().eos_token_id();
    let ids: Vec<u32> = ids.iter().copied().filter(|id| Some(*id) != eos_token_id).collect();
    let text = trainer.tokenizer().decode(&ids)?;
    let begins = batch.seq_start.first() == Some(&1);
    Ok(opening(if begins { &text } else { after_break(&text) }).to_owned())
}

/// A text without what is left of a line or a word at its beginning.
fn after_break(text: &str) -> &str {
    let line = text.split_once('\n').map(|(_, rest)| rest).filter(|rest| !rest.trim().is_empty());
    let word = || text.split_once(char::is_whitespace).map(|(_, rest)| rest);
    line.or_else(word).unwrap_or(text)
}

/// The first words of a text.
fn opening(text: &str) -> &str {
    // Where it was cut, part of a character may be missing.
    let text = text.trim_matches(char::REPLACEMENT_CHARACTER);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let Some((end, _)) = line.char_indices().nth(LENGTH) else { return line };
    // Whole words, where there are any.
    let spaces = line.char_indices().take(LENGTH + 1).filter(|(_, c)| c.is_whitespace());
    line[..spaces.last().map_or(end, |(space, _)| space)].trim_end()
}

/// Generate up to `tokens` tokens from a prompt, and pass the text to `show` as it comes, the
/// prompt first.
pub fn sample(
    trainer: &Trainer,
    seed: u64,
    prompt: &str,
    tokens: usize,
    mut show: impl FnMut(&str),
) -> Result<(), Failure> {
    let (model, tokenizer) = (trainer.model(), trainer.tokenizer());
    // Every document begins with it.
    let eos_token_id = tokenizer.eos_token_id();
    let ids: Vec<u32> = eos_token_id.into_iter().chain(tokenizer.encode(prompt)?).collect();
    if ids.is_empty() {
        return Err("the prompt is empty, and the tokenizer has no token to begin with".into());
    }
    let sampler = Sampler { temperature: TEMPERATURE, seed, ..Sampler::default() };
    let generation = Generation::new(model, sampler)?;
    let mut generation = generation.with_vocab_size(tokenizer.vocab_size())?;
    generation.prompt(&ids)?;
    show(&printable(prompt));
    let options = CompletionOptions {
        tokenizer: Some(tokenizer),
        max_tokens: tokens,
        stops: Vec::new(),
        eos_token_id,
        log_probs: None,
    };
    pollster::block_on(generation.complete(&options, |_, text| {
        show(&printable(text));
        ControlFlow::Continue(())
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{after_break, opening};

    #[test]
    fn a_text_that_was_cut_begins_with_its_next_line_or_word() {
        for (text, expected) in [
            ("alf of it\nA line", "A line"),
            ("alf of a line", "of a line"),
            ("alf\n", ""),
            ("word", "word"),
        ] {
            assert_eq!(after_break(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_prompt_is_a_few_words_of_one_line() {
        for (text, expected) in [
            ("Once upon a time", "Once upon a time"),
            ("\n\n  A title\nand text", "A title"),
            ("In a hole in the ground there lived a hobbit", "In a hole in the ground there"),
            ("In a hole in the ground there li d", "In a hole in the ground there li"),
            ("\u{fffd}\u{fffd} rest of it", "rest of it"),
            (&"字".repeat(40), &"字".repeat(32)),
            ("", ""),
        ] {
            assert_eq!(opening(text), expected, "{text:?}");
        }
    }
}

//! A text that the model writes.

use taipan::{Sampling, Tensor};
use taipan_lm::Trainer;

use super::settings::Settings;
use crate::Failure;

/// Most of what a model is unsure about is wrong.
const TEMPERATURE: f64 = 0.7;

/// Have the model go on from the prompt, and hand out the text as it comes.
pub fn sample(
    trainer: &Trainer,
    settings: &Settings,
    mut show: impl FnMut(&str),
) -> Result<(), Failure> {
    let (model, tokenizer) = (trainer.model(), trainer.tokenizer());
    let prompt = tokenizer.encode(&settings.prompt)?;
    // As every document begins.
    let mut ids: Vec<u32> = tokenizer.end().into_iter().chain(prompt).collect();
    if ids.is_empty() {
        return Err("--prompt is empty, and the tokenizer has no token to begin with".into());
    }
    show(&settings.prompt);
    let (mut state, mut stream) = (None, tokenizer.stream());
    for step in 0..settings.sample_tokens as u64 {
        let input = Tensor::new(&ids, &[1, ids.len()], model.device())?;
        let (logits, next) = model.next(&input, state.as_ref())?;
        let sampling =
            Sampling { temperature: TEMPERATURE, seed: settings.seed, step, ..Sampling::default() };
        let token = pollster::block_on(logits.sample(&sampling)?.read::<u32>())?[0];
        // The head may have rows for more tokens than the tokenizer knows.
        if Some(token) == tokenizer.end() || token as usize >= tokenizer.vocab_size() {
            break;
        }
        show(&printable(&stream.push(token)?));
        (ids, state) = (vec![token], Some(next));
    }
    show(&printable(&stream.finish()?));
    Ok(())
}

/// Without what would command a terminal.
fn printable(text: &str) -> String {
    let plain = |c: char| match c {
        '\n' | '\t' => c,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn samples_cannot_command_the_terminal() {
        assert_eq!(printable("a\tb\n\u{1b}[31mc\r\u{9b}"), "a\tb\n\u{fffd}[31mc\u{fffd}\u{fffd}");
    }
}

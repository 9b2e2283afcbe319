//! A sample of generated text.

use taipan::{Sampling, Tensor};
use taipan_lm::Trainer;

use super::settings::Settings;
use crate::Failure;

/// Below 1: most of what a small model is unsure about is wrong.
const TEMPERATURE: f64 = 0.7;

/// Generate text from the prompt, and pass it to `show` as it comes.
pub fn sample(
    trainer: &Trainer,
    settings: &Settings,
    mut show: impl FnMut(&str),
) -> Result<(), Failure> {
    let (model, tokenizer) = (trainer.model(), trainer.tokenizer());
    let prompt = tokenizer.encode(&settings.prompt)?;
    // Every document begins with it.
    let mut ids: Vec<u32> = tokenizer.eos_token_id().into_iter().chain(prompt).collect();
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
        // The head may have more rows than the tokenizer has tokens.
        if Some(token) == tokenizer.eos_token_id() || token as usize >= tokenizer.vocab_size() {
            break;
        }
        show(&printable(&stream.push(token)?));
        (ids, state) = (vec![token], Some(next));
    }
    show(&printable(&stream.finish()?));
    Ok(())
}

/// Without control characters, which a terminal would obey.
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
    fn samples_cannot_control_the_terminal() {
        assert_eq!(printable("a\tb\n\u{1b}[31mc\r\u{9b}"), "a\tb\n\u{fffd}[31mc\u{fffd}\u{fffd}");
    }
}

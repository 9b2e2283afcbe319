//! A sample of generated text.

use std::ops::ControlFlow;

use taipan_lm::{CompletionOptions, Generation, Sampler, Trainer};

use super::settings::Settings;
use crate::Failure;
use crate::generate::{TEMPERATURE, printable};

/// Generate text from a prompt, and pass it to `show` as it comes, the prompt first.
pub fn sample(
    trainer: &Trainer,
    settings: &Settings,
    prompt: &str,
    mut show: impl FnMut(&str),
) -> Result<(), Failure> {
    let (model, tokenizer) = (trainer.model(), trainer.tokenizer());
    // Every document begins with it.
    let eos_token_id = tokenizer.eos_token_id();
    let ids: Vec<u32> = eos_token_id.into_iter().chain(tokenizer.encode(prompt)?).collect();
    if ids.is_empty() {
        return Err("the prompt is empty, and the tokenizer has no token to begin with".into());
    }
    let sampler = Sampler { temperature: TEMPERATURE, seed: settings.seed, ..Sampler::default() };
    let generation = Generation::new(model, sampler)?;
    let mut generation = generation.with_vocab_size(tokenizer.vocab_size())?;
    generation.prompt(&ids)?;
    show(&printable(prompt));
    let options = CompletionOptions {
        tokenizer: Some(tokenizer),
        max_tokens: settings.sample_tokens,
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

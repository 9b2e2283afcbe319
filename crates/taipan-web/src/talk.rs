//! Text, token by token.

use serde::Deserialize;
use serde_json::json;
use taipan_lm::{Error, Generation, LogProbs, Sampler, Snapshot, TextUntil, Tokenizer};
use wasm_bindgen::prelude::*;

use crate::Session;
use crate::failure::{Failure, Result, parse};

/// A text that is being generated.
pub(crate) struct Talk {
    /// After all tokens so far.
    snapshot: Snapshot,
    sampler: Sampler,
    text: TextUntil,
    options: Options,
    /// Tokens of this text so far.
    count: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Options {
    max_tokens: usize,
    temperature: f64,
    top_k: Option<usize>,
    top_p: f64,
    min_p: f64,
    repetition_penalty: f64,
    seed: u64,
    stop: Vec<String>,
    ignore_eos: bool,
    alternatives: usize,
}

impl Default for Options {
    fn default() -> Options {
        let Sampler { temperature, top_k, top_p, min_p, repetition_penalty, seed } =
            Sampler::default();
        Options {
            max_tokens: 100,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            seed,
            stop: Vec::new(),
            ignore_eos: false,
            alternatives: 0,
        }
    }
}

#[wasm_bindgen]
impl Session {
    /// Begin a text: behind a state, if there is one, and behind a prompt.
    pub async fn talk(
        &mut self,
        prompt: String,
        options: String,
        state: Option<Vec<u8>>,
    ) -> std::result::Result<(), JsValue> {
        Ok(self.begin_talk(&prompt, &options, state).await?)
    }

    /// The next token of the text, as `Token` of the package without its state.
    pub async fn next_token(&mut self) -> std::result::Result<String, JsValue> {
        Ok(self.say().await?)
    }

    /// Where the text is.
    pub async fn state(&mut self) -> std::result::Result<Vec<u8>, JsValue> {
        Ok(self.snapshot().await?)
    }
}

impl Session {
    async fn begin_talk(
        &mut self,
        prompt: &str,
        options: &str,
        state: Option<Vec<u8>>,
    ) -> Result<()> {
        let options: Options = parse("generate", options)?;
        let &Options { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } = &options;
        let sampler = Sampler { temperature, top_k, top_p, min_p, repetition_penalty, seed };
        let model = self.model_mut()?;
        let fingerprint = match state {
            Some(_) => model.fingerprint().await?,
            None => String::new(),
        };
        let (lm, tokenizer) = (model.lm(), &model.tokenizer);
        let mut ids = tokenizer.encode(prompt)?;
        let mut generation = match &state {
            Some(bytes) => {
                let snapshot = Snapshot::parse("state", bytes, lm, &fingerprint)?;
                Generation::resume(lm, sampler.clone(), snapshot)?
            }
            None => {
                // A text begins as every document did in training.
                ids.splice(0..0, tokenizer.eos_token_id());
                Generation::new(lm, sampler.clone())?
            }
        };
        generation.prompt(&ids)?;
        let snapshot = generation.snapshot()?;
        let text = TextUntil::new(tokenizer, &options.stop)?;
        self.talk = Some(Talk { snapshot, sampler, text, options, count: 0 });
        Ok(())
    }

    async fn say(&mut self) -> Result<String> {
        let (Some(model), Some(talk)) = (&self.model, &mut self.talk) else {
            return Err(Error::invalid("generate", "not begun yet").into());
        };
        let (tokenizer, snapshot) = (&model.tokenizer, talk.snapshot.clone());
        let generation = Generation::resume(model.lm(), talk.sampler.clone(), snapshot)?;
        let mut generation = generation.with_vocab_size(tokenizer.vocab_size())?;
        let id = generation.step().await?[0];
        let probabilities = generation.log_probs(talk.options.alternatives).await?;
        talk.snapshot = generation.snapshot()?;
        talk.count += 1;
        let is_eos = Some(id) == tokenizer.eos_token_id() && !talk.options.ignore_eos;
        let mut text = if is_eos { String::new() } else { talk.text.push(id)? };
        let finish = match () {
            _ if is_eos => Some("eos"),
            _ if talk.text.is_stopped() => Some("stop"),
            _ if talk.count >= talk.options.max_tokens => Some("length"),
            _ => None,
        };
        if finish.is_some() {
            let rest = TextUntil::new(tokenizer, &[])?;
            text += &std::mem::replace(&mut talk.text, rest).finish()?;
        }
        Ok(token(tokenizer, &probabilities[0], text, finish)?)
    }

    async fn snapshot(&mut self) -> Result<Vec<u8>> {
        let fingerprint = self.model_mut()?.fingerprint().await?;
        let (Some(model), Some(talk)) = (&self.model, &self.talk) else {
            return Err(Failure::new("input", "state: no text was generated yet"));
        };
        let mut bytes = Vec::new();
        let write = talk.snapshot.write(model.lm(), &fingerprint, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        });
        write.await?;
        Ok(bytes)
    }
}

fn token(
    tokenizer: &Tokenizer,
    LogProbs { id, log_prob, top }: &LogProbs,
    text: String,
    finish: Option<&str>,
) -> taipan_lm::Result<String> {
    let alternative = |(id, log_prob): &(u32, f64)| {
        let text = tokenizer.decode(&[*id])?;
        Ok(json!({ "id": id, "text": text, "probability": log_prob.exp() }))
    };
    let alternatives = top.iter().map(alternative).collect::<taipan_lm::Result<Vec<_>>>()?;
    let mut token = json!({
        "id": id, "text": text, "probability": log_prob.exp(), "alternatives": alternatives,
    });
    if let Some(finish) = finish {
        token["finish"] = finish.into();
    }
    Ok(token.to_string())
}

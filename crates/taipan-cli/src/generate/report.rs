//! What is printed besides the text.

use std::time::Duration;

use serde_json::{Value, json};
use taipan_lm::{Completion, FinishReason, Tokenizer};

use super::Session;
use crate::{Failure, message};

/// Counts and times of a prompt and its texts.
pub struct Speed {
    pub prompt: usize,
    /// Tokens of the prompt that were in the cache.
    pub cached: usize,
    /// Tokens of all texts.
    pub generated: usize,
    /// Until the first token.
    pub prompt_time: Duration,
    pub time: Duration,
}

impl Speed {
    /// To standard error.
    pub fn print(&self) {
        let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        let cached = match self.cached {
            0 => String::new(),
            cached => format!(" ({cached} of them from the cache)"),
        };
        let (prompt_time, rest) = (self.prompt_time, self.time.saturating_sub(self.prompt_time));
        let speed = match self.generated {
            0 | 1 => String::new(),
            generated => format!(", {:.1} tokens/s", rate(generated - 1, rest)),
        };
        let text = format!(
            "prompt {} tokens{cached} in {:.2} s; {} generated in {:.2} s{speed}",
            self.prompt,
            prompt_time.as_secs_f64(),
            self.generated,
            self.time.as_secs_f64(),
        );
        message::print(&format!("{text}\n"));
    }
}

/// Token ids as text.
pub fn ids(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A token as text, if there is a tokenizer.
fn token(id: u32, tokenizer: Option<&Tokenizer>) -> Result<Option<String>, Failure> {
    Ok(tokenizer.map(|tokenizer| tokenizer.decode(&[id])).transpose()?)
}

/// A line for each token of a text.
pub fn log_probs(text: &Completion, tokenizer: Option<&Tokenizer>) -> Result<String, Failure> {
    let shown = |id: u32, log_prob: f64| -> Result<String, Failure> {
        let name = token(id, tokenizer)?.map_or(id.to_string(), |text| format!("{text:?}"));
        Ok(format!("{name} {log_prob:.4}"))
    };
    let mut lines = Vec::new();
    for log_probs in &text.log_probs {
        let top = log_probs.top.iter().map(|(id, log_prob)| shown(*id, *log_prob));
        let top = top.collect::<Result<Vec<_>, Failure>>()?.join(", ");
        lines.push(format!("{}\t{top}", shown(log_probs.id, log_probs.log_prob)?));
    }
    Ok(lines.join("\n"))
}

/// Makes the lines of `--json`.
pub struct Json<'a> {
    pub session: &'a Session<'a>,
    pub prompt_ids: &'a [u32],
}

impl Json<'_> {
    pub fn line(&self, text: &Completion) -> Result<String, Failure> {
        let tokenizer = self.session.model.tokenizer();
        let finish_reason = match text.finish_reason {
            FinishReason::Length => "length",
            FinishReason::Eos => "eos",
            FinishReason::Stop => "stop",
            FinishReason::Interrupted => "interrupted",
        };
        let mut object = json!({
            "text": tokenizer.map(|_| &text.text),
            "ids": text.ids,
            "finish_reason": finish_reason,
            "prompt_ids": self.prompt_ids,
            "seed": self.session.seed,
        });
        if self.session.flags.logprobs.is_some() {
            let of = |id: u32, log_prob: f64| -> Result<Value, Failure> {
                Ok(json!({ "id": id, "token": token(id, tokenizer)?, "logprob": log_prob }))
            };
            let mut tokens = Vec::new();
            for log_probs in &text.log_probs {
                let mut token = of(log_probs.id, log_probs.log_prob)?;
                let top = log_probs.top.iter().map(|(id, log_prob)| of(*id, *log_prob));
                token["top"] = top.collect::<Result<Vec<_>, Failure>>()?.into();
                tokens.push(token);
            }
            object["logprobs"] = tokens.into();
        }
        Ok(format!("{object}\n"))
    }
}

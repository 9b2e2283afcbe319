//! Tokenizers that Hugging Face's library reads, through that library.

use tokenizers::processors::PostProcessorWrapper;

use super::EOS_TOKENS;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct HuggingFace {
    pub json: String,
    tokenizer: tokenizers::Tokenizer,
    pub vocab_size: usize,
    /// The id of the end-of-text token, and the token.
    pub eos: Option<(u32, &'static str)>,
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::invalid("tokenizer.json", error)
}

impl HuggingFace {
    pub fn from_json(json: &str) -> Result<HuggingFace> {
        let mut tokenizer: tokenizers::Tokenizer = json.parse().map_err(invalid)?;
        tokenizer.with_truncation(None).map_err(invalid)?;
        tokenizer.with_padding(None);
        // It would add special tokens and trim offsets.
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        tokenizer.set_encode_special_tokens(true);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let vocab_size = largest.ok_or_else(|| invalid("no tokens in it"))? as usize + 1;
        let eos = EOS_TOKENS.iter().find_map(|eos| Some((tokenizer.token_to_id(eos)?, *eos)));
        Ok(HuggingFace { json: json.to_owned(), tokenizer, vocab_size, eos })
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(invalid)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// A token's bytes are those from the end of the one before to its own end; those of a
    /// character that several tokens share go to the first of them, and the last has what is left
    /// of the text.
    pub fn encode_measured(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        let encoding = self.tokenizer.encode(text, false).map_err(invalid)?;
        let ids = encoding.get_ids().to_vec();
        let mut done = 0;
        let length = |(_, end): &(usize, usize)| {
            let length = end.saturating_sub(done);
            done += length;
            length
        };
        let mut lengths: Vec<usize> = encoding.get_offsets().iter().map(length).collect();
        if let Some(last) = lengths.last_mut() {
            *last += text.len() - done;
        }
        Ok((ids, lengths))
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, true).map_err(invalid)
    }
}

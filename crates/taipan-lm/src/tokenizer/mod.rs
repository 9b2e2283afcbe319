//! Tokenizers: bytes, or a Hugging Face `tokenizer.json`.

mod bpe;
mod byte_bpe;
mod byte_level;
mod categories;
#[cfg(not(target_family = "wasm"))]
mod hugging_face;
mod pair_map;
mod stream;
mod words;

pub use stream::TextStream;

use byte_bpe::ByteBpe;
#[cfg(not(target_family = "wasm"))]
use hugging_face::HuggingFace;

use crate::error::ensure;
use crate::{Error, Result, filesystem};

/// How tokenizers write their end-of-text token, the most common first.
const EOS_TOKENS: [&str; 6] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]"];

/// The canonical composition of a text, by the browser.
#[cfg(target_family = "wasm")]
fn nfc(text: &str) -> String {
    js_sys::JsString::from(text).normalize("NFC").into()
}

/// The canonical composition of a text.
#[cfg(not(target_family = "wasm"))]
fn nfc(text: &str) -> String {
    tokenizers::NormalizedString::from(text).nfc().get().to_owned()
}

/// Turns text into token ids and back. Clones share its vocabulary.
///
/// ```
/// use taipan_lm::Tokenizer;
///
/// let tokenizer = Tokenizer::bytes();
/// assert_eq!(tokenizer.encode("né")?, [0x6e, 0xc3, 0xa9]);
/// assert_eq!(tokenizer.decode(&[0x6e, 0xc3, 0xa9])?, "né");
/// assert_eq!((tokenizer.vocab_size(), tokenizer.eos_token_id()), (256, Some(0)));
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Bytes,
    ByteBpe(std::sync::Arc<ByteBpe>),
    /// What we do not read ourselves, or not in the same way.
    #[cfg(not(target_family = "wasm"))]
    HuggingFace(std::sync::Arc<HuggingFace>),
}

impl Tokenizer {
    /// The id of a byte is its value. Id 0, the byte NUL, which hardly ever occurs in text, is the
    /// end-of-text token.
    pub fn bytes() -> Tokenizer {
        Tokenizer(Kind::Bytes)
    }

    /// Read a `tokenizer.json`.
    ///
    /// Text is text: what looks like a special token in it is encoded letter by letter, and nothing
    /// is truncated or padded, whatever the file asks for. Elsewhere than in browsers every
    /// kind of model is known; in a browser bytes and byte-level BPE, as of GPT-2 and GPT-NeoX.
    pub fn from_json(text: &str) -> Result<Tokenizer> {
        let file: serde_json::Value = serde_json::from_str(text)
            .map_err(|error| Error::invalid("tokenizer.json", format!("not JSON: {error}")))?;
        if byte_level::is_bytes(&file) {
            return Ok(Tokenizer::bytes());
        }
        let byte_bpe = ByteBpe::from_json(text, &file);
        #[cfg(not(target_family = "wasm"))]
        if !byte_bpe.as_ref().is_ok_and(|byte_bpe| byte_bpe.is_exact) {
            return Ok(Tokenizer(Kind::HuggingFace(HuggingFace::from_json(text)?.into())));
        }
        Ok(Tokenizer(Kind::ByteBpe(byte_bpe?.into())))
    }

    /// [`Tokenizer::from_json`] of a file.
    pub fn from_file(path: impl AsRef<std::path::Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let text = filesystem::read_to_string(path).map_err(Error::io(path))?;
        Tokenizer::from_json(&text).map_err(|error| match error {
            Error::Invalid { why, .. } => Error::invalid(path.display(), why),
            other => other,
        })
    }

    /// Train a byte-level BPE tokenizer with `vocab_size` tokens: `<|endoftext|>`, which has id 0,
    /// the 256 bytes, and merges of the most frequent pairs. Merges do not cross the borders of
    /// words, numbers, punctuation and white space.
    ///
    /// The same text gives the same tokenizer, to the byte. Only its distinct words are held in
    /// memory.
    ///
    /// ```
    /// use taipan_lm::{Tokenizer, data::Sources};
    ///
    /// let texts = Sources::texts([("rhyme", "the cat on the mat and the rat in the hat")]);
    /// let tokenizer = Tokenizer::train_bpe(&texts, 260)?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("the tether")?)?, "the tether");
    /// assert_eq!(tokenizer.encode("the")?.len(), 1);
    /// assert_eq!(tokenizer.eos_token_id(), Some(0));
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn train_bpe(sources: &crate::data::Sources, vocab_size: usize) -> Result<Tokenizer> {
        let model = bpe::train(sources, vocab_size)?;
        Tokenizer::from_json(&byte_level::tokenizer_json(model).to_string())
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        match &self.0 {
            Kind::Bytes => 256,
            Kind::ByteBpe(known) => known.vocab_size,
            #[cfg(not(target_family = "wasm"))]
            Kind::HuggingFace(known) => known.vocab_size,
        }
    }

    /// The id of the end-of-text token, which stands before every document.
    ///
    /// In a `tokenizer.json` it is the first of `<|endoftext|>`, `<|end_of_text|>`, `</s>`,
    /// `<eos>`, `<|eos|>` and `[EOS]` that is there.
    pub fn eos_token_id(&self) -> Option<u32> {
        match &self.0 {
            Kind::Bytes => Some(0),
            Kind::ByteBpe(known) => known.eos.map(|(id, _)| id),
            #[cfg(not(target_family = "wasm"))]
            Kind::HuggingFace(known) => known.eos.map(|(id, _)| id),
        }
    }

    /// The end-of-text token as text, for the `eos_token` of `tokenizer_config.json`. Bytes have
    /// none: Hugging Face's library would look for it in text, where the character that stands for
    /// NUL, `Ā`, means itself.
    pub fn eos_token(&self) -> Option<&str> {
        match &self.0 {
            Kind::Bytes => None,
            Kind::ByteBpe(known) => known.eos.map(|(_, token)| token),
            #[cfg(not(target_family = "wasm"))]
            Kind::HuggingFace(known) => known.eos.map(|(_, token)| token),
        }
    }

    /// The ids of `text`, without added special tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.0 {
            Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Kind::ByteBpe(known) => known.encode(text),
            #[cfg(not(target_family = "wasm"))]
            Kind::HuggingFace(known) => known.encode(text),
        }
    }

    /// The ids of `text`, and the number of its bytes in each; these add up to all of them.
    pub(crate) fn encode_measured(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        match &self.0 {
            Kind::Bytes => Ok((self.encode(text)?, vec![1; text.len()])),
            Kind::ByteBpe(known) => known.encode_measured(text),
            #[cfg(not(target_family = "wasm"))]
            Kind::HuggingFace(known) => known.encode_measured(text),
        }
    }

    /// The text of ids. What is not UTF-8, as a character that is cut off, becomes
    /// U+FFFD; special tokens, as the end-of-text token, are left out where they are not themselves
    /// text. An id outside the vocabulary is an error. For text that comes token by token there is
    /// [`Tokenizer::stream`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let size = self.vocab_size();
        for id in ids {
            ensure!((*id as usize) < size, "decode", "token {id}, expected less than {size}");
        }
        match &self.0 {
            Kind::Bytes => {
                let bytes: Vec<u8> = ids.iter().map(|id| *id as u8).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Kind::ByteBpe(known) => known.decode(ids),
            #[cfg(not(target_family = "wasm"))]
            Kind::HuggingFace(known) => known.decode(ids),
        }
    }

    /// To show text while it is generated.
    pub fn stream(&self) -> TextStream {
        TextStream { tokenizer: self.clone(), ids: Vec::new(), shown: 0 }
    }

    /// The text of a `tokenizer.json`: what was read, or for bytes one with which Hugging Face's
    /// library gives the same ids.
    pub fn to_json(&self) -> String {
        match &self.0 {
            Kind::Bytes => byte_level::bytes_json().to_string(),
            Kind::ByteBpe(known) => known.json.clone(),
            #[cfg(not(target_family = "wasm"))]
            Kind::HuggingFace(known) => known.json.clone(),
        }
    }
}

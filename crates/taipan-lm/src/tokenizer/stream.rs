//! Text that comes token by token.

use super::Tokenizer;
use crate::Result;

/// Tokens whose text is held back at most. A character is at most 4 bytes, and so of fewer tokens.
const HELD: usize = 16;

/// Text of tokens that arrive one by one; characters are shown when they are complete. What is no
/// text, and U+FFFD itself, is shown with the next character that is, or after some tokens.
///
/// ```
/// let tokenizer = taipan_lm::Tokenizer::bytes();
/// let mut stream = tokenizer.stream();
/// assert_eq!(stream.push(0xc3)?, "");
/// assert_eq!(stream.push(0xa9)?, "é");
/// assert_eq!(stream.finish()?, "");
/// # Ok::<(), taipan_lm::Error>(())
/// ```
pub struct TextStream {
    pub(super) tokenizer: Tokenizer,
    /// What the text that comes next depends on, and what is not shown yet.
    pub(super) ids: Vec<u32>,
    /// How many of `ids` are shown.
    pub(super) shown: usize,
}

impl TextStream {
    /// One more token; what can be shown now.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = self.unseen()?;
        let held = self.ids.len() - self.shown;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && held < HELD {
            return Ok(String::new());
        }
        // A token's text may depend on the one before, as its space does.
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        Ok(text)
    }

    /// What is left, though its last character is incomplete.
    pub fn finish(self) -> Result<String> {
        self.unseen()
    }

    fn unseen(&self) -> Result<String> {
        let before = self.tokenizer.decode(&self.ids[..self.shown])?;
        let text = self.tokenizer.decode(&self.ids)?;
        Ok(text.get(before.len()..).unwrap_or_default().to_owned())
    }
}

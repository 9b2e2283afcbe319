//! Text that ends where a stop text begins.

use crate::error::ensure;
use crate::{Result, TextStream, Tokenizer};

/// Text that is generated token by token, up to the first of some stop texts. What may be the
/// beginning of one is held back until it is known.
///
/// ```
/// use taipan_lm::{TextUntil, Tokenizer};
///
/// let tokenizer = Tokenizer::bytes();
/// let mut text = TextUntil::new(&tokenizer, &["###".into()])?;
/// let shown: Vec<String> =
///     b"a#b##".iter().map(|byte| text.push(u32::from(*byte))).collect::<Result<_, _>>()?;
/// assert_eq!(shown, ["a", "", "#b", "", ""]);
/// assert_eq!(text.push(u32::from(b'#'))?, "");
/// assert!(text.is_stopped());
/// # Ok::<(), taipan_lm::Error>(())
/// ```
pub struct TextUntil {
    stream: TextStream,
    filter: StopFilter,
}

/// Text without what comes from a stop text on.
struct StopFilter {
    stops: Vec<String>,
    /// What may be the beginning of a stop text.
    held: String,
    is_stopped: bool,
}

impl TextUntil {
    /// Text of a tokenizer, up to the first of these texts.
    pub fn new(tokenizer: &Tokenizer, stops: &[String]) -> Result<TextUntil> {
        let fine = stops.iter().all(|stop| !stop.is_empty());
        ensure!(fine, "generate", "a stop text is empty, expected a character or more");
        let filter = StopFilter { stops: stops.to_vec(), held: String::new(), is_stopped: false };
        Ok(TextUntil { stream: tokenizer.stream(), filter })
    }

    /// One more token; the text that can be shown now.
    pub fn push(&mut self, id: u32) -> Result<String> {
        Ok(self.filter.add(&self.stream.push(id)?))
    }

    /// Whether a stop text was found. It and what follows it is not shown.
    pub fn is_stopped(&self) -> bool {
        self.filter.is_stopped
    }

    /// The text that was held back, at the end.
    pub fn finish(self) -> Result<String> {
        let TextUntil { stream, mut filter } = self;
        let shown = filter.add(&stream.finish()?);
        Ok(shown + &filter.held)
    }
}

impl StopFilter {
    /// More text; what can be shown now.
    fn add(&mut self, text: &str) -> String {
        if self.is_stopped {
            return String::new();
        }
        self.held += text;
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.is_stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let may_stop =
            |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let shown = starts.find(may_stop).unwrap_or(self.held.len());
        let rest = self.held.split_off(shown);
        std::mem::replace(&mut self.held, rest)
    }
}

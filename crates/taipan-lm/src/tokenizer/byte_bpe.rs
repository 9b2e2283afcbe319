//! Byte-level BPE from a `tokenizer.json`: the tokenizers of GPT-2 and GPT-NeoX, which Mamba's
//! checkpoints use, and our own. Hugging Face's library is slower, and too large for a web page.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::Deserialize;
use serde_json::Value;

use super::byte_level::alphabet;
use super::pair_map::PairMap;
use super::words::words;
use super::{EOS_TOKENS, nfc};
use crate::error::ensure;
use crate::{Error, Result};

const FILE: &str = "tokenizer.json";

/// A byte-level BPE tokenizer.
#[derive(Debug)]
pub(super) struct ByteBpe {
    pub json: String,
    pub vocab_size: usize,
    /// The id of the end-of-text token, and the token.
    pub eos: Option<(u32, &'static str)>,
    /// The id of each byte.
    bytes: [u32; 256],
    /// Which pairs become which token, with their rank.
    merges: PairMap<(u32, u32)>,
    /// The bytes of each token; none for a special token.
    texts: HashMap<u32, Vec<u8>>,
    /// Tokens that are found in text before it is cut into words: in the text as it is, and in the
    /// normalised text.
    added: [Vec<(String, u32)>; 2],
    normalizer: Normalizer,
    split: Split,
    /// Whether ids and lengths are those of Hugging Face's library for every text. Where it composes
    /// characters, lengths are not; added tokens that are not in the vocabulary it may renumber.
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    pub is_exact: bool,
}

#[derive(Debug, PartialEq)]
enum Normalizer {
    None,
    Nfc,
}

#[derive(Debug)]
struct Split {
    /// Whether text is cut into words.
    words: bool,
    /// Whether a space is added before the first word.
    prefix_space: bool,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair([String; 2]),
    Text(String),
}

fn invalid(why: impl std::fmt::Display) -> Error {
    Error::invalid(FILE, why)
}

/// Refuse what would change the tokens and is not supported.
fn check(file: &Value) -> Result<()> {
    let absent = |value: &Value| value.is_null() || value == false || value == "";
    let (model, cut) = (&file["model"], &file["pre_tokenizer"]);
    for (name, found, expected) in [
        ("model", &model["type"], "BPE"),
        ("pre_tokenizer", &cut["type"], "ByteLevel"),
        ("decoder", &file["decoder"]["type"], "ByteLevel"),
    ] {
        ensure!(
            found == expected,
            FILE,
            "the {name} is {found}, expected \"{expected}\" in a browser"
        );
    }
    let normalizer = &file["normalizer"]["type"];
    let known = normalizer.is_null() || normalizer == "NFC";
    ensure!(known, FILE, "the normalizer is {normalizer}, expected none or \"NFC\" in a browser");
    for key in [
        "dropout",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "byte_fallback",
        "ignore_merges",
    ] {
        let found = &model[key];
        ensure!(absent(found), FILE, "{key} of the model is {found}, expected none in a browser");
    }
    Ok(())
}

impl ByteBpe {
    pub fn from_json(json: &str, file: &Value) -> Result<ByteBpe> {
        check(file)?;
        let Model { vocab, merges } = Model::deserialize(&file["model"]).map_err(invalid)?;
        let added = match &file["added_tokens"] {
            Value::Null => Vec::new(),
            added => Vec::<Added>::deserialize(added).map_err(invalid)?,
        };
        let id = |token: &str| {
            vocab
                .get(token)
                .copied()
                .ok_or_else(|| invalid(format!("{token:?} is not in its vocabulary")))
        };
        let alphabet = alphabet();
        let mut bytes = [0; 256];
        for (byte, shown) in bytes.iter_mut().zip(alphabet) {
            *byte = id(&shown.to_string())?;
        }
        let mut by_pair = PairMap::default();
        for (rank, merge) in merges.iter().enumerate() {
            let (left, right) = match merge {
                Merge::Pair([left, right]) => (left.as_str(), right.as_str()),
                Merge::Text(text) => text
                    .split_once(' ')
                    .ok_or_else(|| invalid(format!("the merge {text:?}, expected two tokens")))?,
            };
            let merged = id(&format!("{left}{right}"))?;
            by_pair.insert((id(left)?, id(right)?), (rank as u32, merged));
        }
        let values: HashMap<char, u8> = alphabet.into_iter().zip(0..=u8::MAX).collect();
        // A token with other characters is its own text.
        let text = |token: &str| {
            let bytes: Option<Vec<u8>> = token.chars().map(|c| values.get(&c).copied()).collect();
            bytes.unwrap_or_else(|| token.as_bytes().to_vec())
        };
        let mut texts: HashMap<u32, Vec<u8>> =
            vocab.iter().map(|(token, id)| (*id, text(token))).collect();
        let mut found = [Vec::new(), Vec::new()];
        for Added { id, content, single_word, lstrip, rstrip, normalized, special } in &added {
            let plain = *special || !(*single_word || *lstrip || *rstrip);
            ensure!(
                plain,
                FILE,
                "{content:?} is stripped or a single word, expected neither in a browser"
            );
            match special {
                true => _ = texts.insert(*id, Vec::new()),
                false => {
                    texts.insert(*id, text(content));
                    found[usize::from(*normalized)].push((content.clone(), *id));
                }
            }
        }
        let of_added = |token: &str| added.iter().find(|a| a.content == token).map(|a| a.id);
        let eos = EOS_TOKENS
            .iter()
            .find_map(|eos| Some((of_added(eos).or_else(|| vocab.get(*eos).copied())?, *eos)));
        let largest = texts.keys().max().ok_or_else(|| invalid("no tokens in it"))?;
        let cut = &file["pre_tokenizer"];
        let is_known = |token: &Added| vocab.get(&token.content) == Some(&token.id);
        let is_exact =
            file["normalizer"].is_null() && added.iter().all(|a| a.special && is_known(a));
        Ok(ByteBpe {
            is_exact,
            json: json.to_owned(),
            vocab_size: *largest as usize + 1,
            eos,
            bytes,
            merges: by_pair,
            texts,
            added: found,
            normalizer: match file["normalizer"].is_null() {
                true => Normalizer::None,
                false => Normalizer::Nfc,
            },
            split: Split {
                words: cut["use_regex"] != false,
                prefix_space: cut["add_prefix_space"] != false,
            },
        })
    }

    /// The ids of a text, each with the end of its bytes in the normalised text, and the length of
    /// that.
    fn tokens(&self, text: &str) -> (Vec<(u32, usize)>, usize) {
        let (mut tokens, mut done) = (Vec::new(), 0);
        for piece in split_at(text, &self.added[0]) {
            let normalized;
            let pieces = match piece {
                Piece::Text(text) if self.normalizer == Normalizer::Nfc => {
                    normalized = nfc(text);
                    split_at(&normalized, &self.added[1])
                }
                Piece::Text(text) => split_at(text, &self.added[1]),
                token => vec![token],
            };
            for piece in pieces {
                match piece {
                    Piece::Token(id, length) => {
                        done += length;
                        tokens.push((id, done));
                    }
                    Piece::Text(text) => done = self.encode_piece(text, done, &mut tokens),
                }
            }
        }
        (tokens, done)
    }

    /// Add the tokens of a text that begins at `start`; where it ends.
    fn encode_piece(&self, text: &str, start: usize, tokens: &mut Vec<(u32, usize)>) -> usize {
        let spaced = self.split.prefix_space && !text.starts_with(' ') && !text.is_empty();
        let prefixed = if spaced { format!(" {text}") } else { String::new() };
        let (text, added) = if spaced { (prefixed.as_str(), 1) } else { (text, 0) };
        // A space that is added belongs to the first character.
        let least = ceil_char_boundary(text, added + 1) * added;
        let mut done = 0;
        let mut add = |merged: &[(u32, usize)]| {
            for (id, length) in merged {
                done += length;
                // A character that several tokens share goes to the first of them.
                let shared = ceil_char_boundary(text, done).max(least);
                tokens.push((*id, start + shared - added));
            }
        };
        match self.split.words {
            true => {
                // Most words occur again.
                let mut merged: HashMap<&str, Vec<(u32, usize)>> = HashMap::new();
                for word in words(text) {
                    add(merged.entry(word).or_insert_with(|| self.merge(word.as_bytes())));
                }
            }
            false => add(&self.merge(text.as_bytes())),
        }
        start + text.len() - added
    }

    /// The tokens of a word, each with its length: the merge of lowest rank first, of equal ones
    /// the leftmost.
    fn merge(&self, word: &[u8]) -> Vec<(u32, usize)> {
        // A token that was merged into the one before it has length 0.
        let mut tokens: Vec<(u32, usize)> =
            word.iter().map(|byte| (self.bytes[*byte as usize], 1)).collect();
        let rank = |tokens: &[(u32, usize)], left: usize, right: usize| {
            let pair = (tokens[left].0, tokens.get(right)?.0);
            let (rank, _) = self.merges.get(&pair)?;
            Some(Reverse((*rank, left, pair)))
        };
        let mut queue: BinaryHeap<_> =
            (0..word.len()).filter_map(|i| rank(&tokens, i, i + 1)).collect();
        // The token before each.
        let mut before: Vec<usize> = (0..word.len()).map(|i| i.wrapping_sub(1)).collect();
        while let Some(Reverse((_, left, pair))) = queue.pop() {
            let right = left + tokens[left].1;
            let is_there = tokens[left].1 > 0
                && tokens.get(right).is_some_and(|token| (tokens[left].0, token.0) == pair);
            if !is_there {
                continue;
            }
            let length = std::mem::take(&mut tokens[right].1);
            tokens[left] = (self.merges[&pair].1, tokens[left].1 + length);
            let next = right + length;
            if let Some(link) = before.get_mut(next) {
                *link = left;
            }
            if left > 0 {
                queue.extend(rank(&tokens, before[left], left));
            }
            queue.extend(rank(&tokens, left, next));
        }
        tokens.retain(|(_, length)| *length > 0);
        tokens
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokens(text).0.into_iter().map(|(id, _)| id).collect())
    }

    /// The ids, and the bytes of text of each. Where normalisation changed the length of the text,
    /// they are in proportion.
    pub fn encode_measured(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        let (tokens, normalized) = self.tokens(text);
        let mut done = 0;
        let last = tokens.len().wrapping_sub(1);
        let measured = tokens.into_iter().enumerate().map(|(i, (id, end))| {
            let end = match i {
                _ if i == last => text.len(),
                _ if normalized == text.len() => end,
                _ => end * text.len() / normalized,
            };
            let length = end.saturating_sub(done);
            done += length;
            (id, length)
        });
        Ok(measured.unzip())
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let bytes: Vec<u8> =
            ids.iter().filter_map(|id| self.texts.get(id)).flatten().copied().collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

enum Piece<'a> {
    Text(&'a str),
    /// An added token and its length.
    Token(u32, usize),
}

/// A text cut at added tokens: at each place the longest.
fn split_at<'a>(text: &'a str, added: &[(String, u32)]) -> Vec<Piece<'a>> {
    let (mut pieces, mut begin, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        let here = added.iter().filter(|(token, _)| text[at..].starts_with(token));
        match here.max_by_key(|(token, _)| token.len()) {
            Some((token, id)) if !token.is_empty() => {
                if begin < at {
                    pieces.push(Piece::Text(&text[begin..at]));
                }
                pieces.push(Piece::Token(*id, token.len()));
                at += token.len();
                begin = at;
            }
            _ if added.is_empty() => at = text.len(),
            _ => at = ceil_char_boundary(text, at + 1),
        }
    }
    if begin < text.len() {
        pieces.push(Piece::Text(&text[begin..]));
    }
    pieces
}

/// The first character boundary that is not before `at`.
fn ceil_char_boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::*;
    use crate::Tokenizer;
    use crate::data::Sources;
    use crate::tokenizer::hugging_face::HuggingFace;
    use serde_json::json;

    const TEXT: &str = "the cat sat on the mat,  the rat's hat isn't   naïve e\u{301} 日本 日本 12";

    fn trained() -> Value {
        let sources = Sources::texts([("a", TEXT.repeat(3)), ("b", "if x {\n    y();\n}".into())]);
        serde_json::from_str(&Tokenizer::train_bpe(&sources, 290).unwrap().to_json()).unwrap()
    }

    /// As that of GPT-NeoX: normalised, with tokens for runs of spaces.
    fn like_neox() -> Value {
        let mut file = trained();
        file["normalizer"] = json!({"type": "NFC"});
        let added = file["added_tokens"].as_array_mut().unwrap();
        for (id, content) in [(290, "  "), (291, "    "), (292, "né")] {
            added.push(json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": true, "special": false,
            }));
        }
        let merges = file["model"]["merges"].as_array_mut().unwrap();
        // As files of older versions write them.
        for merge in merges {
            *merge =
                format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into();
        }
        file
    }

    #[test]
    fn ids_lengths_and_text_are_those_of_hugging_face() {
        let mut prefixed = trained();
        prefixed["pre_tokenizer"]["add_prefix_space"] = true.into();
        let mut uncut = trained();
        uncut["pre_tokenizer"]["use_regex"] = false.into();
        let every: String = (1..0x800).filter_map(char::from_u32).collect();
        let long = "aththe the".repeat(500);
        for file in [trained(), like_neox(), prefixed, uncut] {
            let json = file.to_string();
            let (ours, theirs) =
                (ByteBpe::from_json(&json, &file).unwrap(), HuggingFace::from_json(&json).unwrap());
            assert_eq!((ours.vocab_size, ours.eos), (theirs.vocab_size, theirs.eos));
            for text in
                ["", " ", "a", TEXT, "  x", "\n\n  the", "<|endoftext|>né  né", &every, &long]
            {
                let expected = theirs.encode(text).unwrap();
                assert_eq!(ours.encode(text).unwrap(), expected, "{text:?}");
                assert_eq!(ours.decode(&expected).unwrap(), theirs.decode(&expected).unwrap());
                let (ids, lengths) = ours.encode_measured(text).unwrap();
                assert_eq!((ids, lengths.iter().sum()), (expected, text.len()));
                if file["normalizer"].is_null() {
                    assert_eq!(lengths, theirs.encode_measured(text).unwrap().1, "{text:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let change = |path: &str, value: Value| {
            let mut file = trained();
            *file.pointer_mut(path).unwrap() = value;
            ByteBpe::from_json(&file.to_string(), &file).unwrap_err().to_string()
        };
        assert_eq!(
            change("/model/type", "Unigram".into()),
            "tokenizer.json: the model is \"Unigram\", expected \"BPE\" in a browser"
        );
        assert!(change("/normalizer", json!({"type": "NFKC"})).contains("normalizer is \"NFKC\""));
        assert!(change("/pre_tokenizer", json!({"type": "Split"})).contains("pre_tokenizer"));
        assert!(change("/model/byte_fallback", true.into()).contains("byte_fallback"));
        assert!(change("/model/vocab", json!({"a": 0})).contains("is not in its vocabulary"));
    }
}

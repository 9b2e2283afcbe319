//! Text cut into words, as byte-level tokenizers do since GPT-2. No merge crosses their borders.

use super::categories::{is_letter, is_number};

/// The words of a text, which are all of it. They are the matches of
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = first(rest)?;
        let (word, behind) = rest.split_at(length);
        rest = behind;
        Some(word)
    })
}

const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

#[derive(PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

impl Class {
    fn of(c: char) -> Class {
        match c {
            _ if is_letter(c) => Class::Letter,
            _ if is_number(c) => Class::Number,
            _ if c.is_whitespace() => Class::Space,
            _ => Class::Other,
        }
    }
}

/// The length in bytes of the first word.
fn first(text: &str) -> Option<usize> {
    if let Some(found) = CONTRACTIONS.iter().find(|word| text.starts_with(**word)) {
        return Some(found.len());
    }
    let space = usize::from(text.starts_with(' '));
    if let Some(next) = text[space..].chars().next()
        && Class::of(next) != Class::Space
    {
        return Some(space + run(&text[space..], &Class::of(next)));
    }
    // White space: before something else its last character is left to that.
    let length = run(text, &Class::Space);
    let last = text[..length].chars().next_back()?.len_utf8();
    Some(if length < text.len() && length > last { length - last } else { length })
}

/// The length in bytes of the characters of one class that a text begins with.
fn run(text: &str, class: &Class) -> usize {
    text.find(|c| Class::of(c) != *class).unwrap_or(text.len())
}

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    /// The words that Hugging Face's library cuts.
    fn expected(text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        ByteLevel::default().add_prefix_space(false).pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (start, end), _)| text[start..end].to_owned()).collect()
    }

    #[test]
    fn words_are_those_of_hugging_face() {
        for text in [
            "",
            " ",
            "  ",
            "a  b",
            "\n\n x",
            "it's we'll I'D 'tis can't've ''s",
            " \t\n  end ",
            "x= 12,345.6e7 — “né” ½ Ⅷ ²",
            "a\u{a0}\u{a0}b\u{2003} c\u{3000}",
            "日本語 のテキスト123です。  الم",
            "e\u{301}  \u{301}\u{200d} 👩\u{200d}🚀",
        ] {
            assert_eq!(words(text).collect::<Vec<_>>(), expected(text), "{text:?}");
        }
    }

    #[test]
    fn every_character_is_of_the_class_that_hugging_face_gives_it() {
        // What is around it shows which of the four classes it is.
        let all: Vec<char> = (0..=0x10ffff).filter_map(char::from_u32).collect();
        for block in all.chunks(4096) {
            let text: String =
                block.iter().flat_map(|c| ['.', 'a', *c, 'a', '1', *c, '1']).collect();
            let expected = expected(&text);
            let wrong = words(&text).zip(&expected).find(|(found, expected)| found != expected);
            assert_eq!(wrong, None);
        }
    }
}

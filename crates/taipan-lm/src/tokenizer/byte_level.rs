//! Bytes as printable characters, the alphabet of byte-level tokenizers since GPT-2.

use serde_json::{Map, Value, json};

use super::EOS_TOKENS;

/// The character that stands for each byte in a `tokenizer.json`: itself where it can be seen, else
/// the next one from U+0100 on.
pub(super) fn alphabet() -> [char; 256] {
    let mut unseen = 0x100..;
    std::array::from_fn(|byte| match byte as u8 {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as u8 as char,
        _ => unseen.next().and_then(char::from_u32).expect("68 characters from U+0100 on"),
    })
}

/// A `tokenizer.json` of byte-level BPE. Text is cut into words first, which merges do not cross.
pub(super) fn tokenizer_json(model: Bpe) -> Value {
    let byte_level = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": use_regex,
        })
    };
    let special = |(id, content): (usize, &&str)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let tokens = model.tokens.into_iter().enumerate();
    let vocab: Map<String, Value> = tokens.map(|(id, token)| (token, id.into())).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": model.special.iter().enumerate().map(special).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level(!model.merges.is_empty()),
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": model.merges,
        },
    })
}

/// Pairs of tokens that become one, over an alphabet of bytes.
pub(super) struct Bpe {
    /// Every token, in the order of their ids.
    pub tokens: Vec<String>,
    /// Which tokens are merged, in order of priority.
    pub merges: Vec<[String; 2]>,
    /// Special tokens, without text; the first of `tokens`.
    pub special: &'static [&'static str],
}

/// A `tokenizer.json` whose ids are bytes. Id 0 is a special token, for Hugging Face's library to
/// pad with and to stop at; it is also the token of what the vocabulary lacks, which is the byte 0.
pub(super) fn bytes_json() -> Value {
    let mut tokens = alphabet().map(String::from).to_vec();
    tokens[0] = EOS_TOKENS[0].into();
    let mut file = tokenizer_json(Bpe { tokens, merges: Vec::new(), special: &EOS_TOKENS[..1] });
    file["model"]["unk_token"] = EOS_TOKENS[0].into();
    file
}

/// Whether a `tokenizer.json` gives every byte its own value as id. Without merges it does not
/// matter how text is cut before.
pub(super) fn is_bytes(file: &Value) -> bool {
    let (ours, pre, model) = (bytes_json(), &file["pre_tokenizer"], &file["model"]);
    let nothing = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    // Without special tokens, the byte 0 is in the vocabulary.
    let plain: Map<String, Value> =
        alphabet().iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let is_plain = nothing(&file["added_tokens"]) && model["vocab"].as_object() == Some(&plain);
    let is_ours = file["added_tokens"] == ours["added_tokens"]
        && model["vocab"] == ours["model"]["vocab"]
        && model["unk_token"] == ours["model"]["unk_token"];
    pre["type"] == "ByteLevel"
        && pre["add_prefix_space"] == false
        && model["type"] == "BPE"
        && nothing(&model["merges"])
        && nothing(&file["normalizer"])
        && (is_ours || is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_that_of_gpt2() {
        let alphabet = alphabet();
        let distinct: std::collections::BTreeSet<_> = alphabet.iter().collect();
        assert_eq!(distinct.len(), 256);
        for (byte, shown) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'a', 'a'), (0, 'Ā'), (0xad, 'Ń')] {
            assert_eq!(alphabet[byte as usize], shown);
        }
    }
}

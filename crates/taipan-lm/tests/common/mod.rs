//! What several tests share.

use taipan_lm::Tokenizer;

/// A tokenizer of capital letters, without an end-of-text token.
pub fn letters_without_eos() -> Tokenizer {
    let vocab: Vec<String> =
        ('A'..='Z').zip(0..).map(|(c, id)| format!(r#""{c}": {id}"#)).collect();
    let model = r#""type": "BPE", "merges": [], "vocab""#;
    let json = format!(r#"{{"version": "1.0", "model": {{{model}: {{{}}}}}}}"#, vocab.join(","));
    Tokenizer::from_json(&json).unwrap()
}

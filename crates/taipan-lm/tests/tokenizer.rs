//! Text to ids and back, compared with Hugging Face's library itself.

use std::fs;

use proptest::prelude::*;
use taipan_lm::Tokenizer;
use taipan_lm::data::Sources;

/// Every byte that UTF-8 has, characters of one to four bytes, and what other tokenizers treat as
/// special.
fn all_kinds_of_text() -> Vec<String> {
    let all: String =
        (0..0x800).chain((0x800..0x11_0000).step_by(0x333)).filter_map(char::from_u32).collect();
    let plain = [
        "",
        " ",
        "plain",
        "a  b\t\n\r\n c ",
        "naïve Ā Ġ Ċ",
        "日本語",
        "👩‍👩‍👧",
        "e\u{301}",
        "\u{feff}x",
    ];
    let special = ["<|endoftext|>", "</s><s>", "'s 're ... 1234", "\0"];
    plain.into_iter().chain(special).map(String::from).chain([all]).collect()
}

fn hugging_face(tokenizer: &Tokenizer) -> tokenizers::Tokenizer {
    tokenizer.to_json().parse().unwrap()
}

fn error<T>(result: taipan_lm::Result<T>) -> String {
    result.err().expect("an error").to_string()
}

fn rhymes() -> Sources {
    Sources::texts([
        ("one", "the cat sat on the mat, the rat ate the hat.\n".repeat(3)),
        ("two", "naïve 日本 日本 1234 1234   if x {\n    y();\n}\n".to_owned()),
    ])
}

#[test]
fn bytes_are_the_same_in_hugging_faces_library() {
    let bytes = Tokenizer::bytes();
    let theirs = hugging_face(&bytes);
    assert_eq!(theirs.get_vocab_size(true), 256);
    for text in all_kinds_of_text() {
        let ids = bytes.encode(&text).unwrap();
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(bytes.decode(&ids).unwrap(), text);
        if text != "<|endoftext|>" {
            assert_eq!(theirs.encode(&*text, true).unwrap().get_ids(), ids, "{text:?}");
            // There the byte 0 is a special token alone, which is left out.
            assert_eq!(theirs.decode(&ids, true).unwrap(), text.replace('\0', ""));
        }
    }
    assert_eq!(theirs.encode("<|endoftext|>", true).unwrap().get_ids(), [0]);
    assert_eq!(bytes.eos_token(), Some("<|endoftext|>"));
}

#[test]
fn bytes_that_are_no_text_decode_as_in_hugging_faces_library() {
    let bytes = Tokenizer::bytes();
    let theirs = hugging_face(&bytes);
    for ids in [&[0xff][..], &[0x61, 0xc3], &[0xa9, 0x62], &[0xe2, 0x82, 0x28], &[0xf0, 0x9f, 0x99]]
    {
        assert_eq!(bytes.decode(ids).unwrap(), theirs.decode(ids, true).unwrap());
        assert!(bytes.decode(ids).unwrap().contains('\u{fffd}'));
    }
}

#[test]
fn bytes_are_known_again() {
    let theirs = hugging_face(&Tokenizer::bytes());
    let ours = Tokenizer::bytes().to_json();
    // As it was written without special tokens.
    let mut plain: serde_json::Value = serde_json::from_str(&ours).unwrap();
    plain["added_tokens"] = serde_json::json!([]);
    let vocab = plain["model"]["vocab"].as_object_mut().unwrap();
    vocab.remove("<|endoftext|>");
    vocab.insert("Ā".into(), 0.into());
    for json in [ours, plain.to_string(), theirs.to_string(true).unwrap()] {
        let again = Tokenizer::from_json(&json).unwrap();
        assert_eq!((again.encode("\0né").unwrap().len(), again.vocab_size()), (4, 256));
        assert_eq!(again.to_json(), Tokenizer::bytes().to_json());
    }
    // Almost bytes.
    let prefixed =
        Tokenizer::bytes().to_json().replace("prefix_space\":false", "prefix_space\":true");
    let prefixed = Tokenizer::from_json(&prefixed).unwrap();
    assert_eq!((prefixed.eos_token_id(), prefixed.encode("a").unwrap()), (Some(0), vec![32, 97]));
}

#[test]
fn a_trained_tokenizer_reads_back_everything() {
    let bpe = Tokenizer::train_bpe(&rhymes(), 280).unwrap();
    let theirs = hugging_face(&bpe);
    assert_eq!((bpe.vocab_size(), theirs.get_vocab_size(true)), (280, 280));
    assert_eq!((bpe.eos_token_id(), bpe.eos_token()), (Some(0), Some("<|endoftext|>")));
    assert_eq!(theirs.id_to_token(0).unwrap(), "<|endoftext|>");
    for text in all_kinds_of_text() {
        let ids = bpe.encode(&text).unwrap();
        assert_eq!(bpe.decode(&ids).unwrap(), text);
        assert!(!ids.contains(&0), "text has no end in it: {text:?}");
        if !text.contains("<|endoftext|>") {
            assert_eq!(theirs.encode(&*text, true).unwrap().get_ids(), ids);
        }
    }
    assert_eq!(theirs.encode("<|endoftext|>", true).unwrap().get_ids(), [0]);
}

#[test]
fn training_joins_the_most_frequent_pairs() {
    // The words are " the" and " ct", four times each, and "the". Of pairs as frequent as each
    // other, that with the smaller ids is joined first; a token that was made later has a larger
    // one.
    let sources = Sources::texts([("a", "the the the the the ct ct ct ct")]);
    let bpe = Tokenizer::train_bpe(&sources, 262).unwrap();
    let json: serde_json::Value = serde_json::from_str(&bpe.to_json()).unwrap();
    let merges =
        serde_json::json!([["h", "e"], ["t", "he"], ["Ġ", "c"], ["Ġ", "the"], ["Ġc", "t"]]);
    assert_eq!(json["model"]["merges"], merges);
    assert_eq!(bpe.encode(" the ct").unwrap(), [260, 261]);
    assert_eq!(bpe.encode("ct").unwrap(), [1 + u32::from(b'c'), 1 + u32::from(b't')]);
}

#[test]
fn repeated_letters_are_joined_from_the_left() {
    let sources = Sources::texts([("a", "aaaaa aaaaa aaaaa")]);
    let bpe = Tokenizer::train_bpe(&sources, 259).unwrap();
    // First aa: aaaaa is aa, aa and a. Then aa with a, which goes before aa with aa.
    assert_eq!(bpe.encode("aaaaa").unwrap(), [257, 258]);
    assert_eq!(bpe.encode("aaaa").unwrap(), [257, 257]);
}

#[test]
fn training_twice_gives_the_same_file() {
    let text = |seed: u64| {
        let mut state = seed;
        let mut letter = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            [b'a', b'b', b'c', b'd', b' '][(state >> 40) as usize % 5] as char
        };
        (0..20_000).map(|_| letter()).collect::<String>()
    };
    // Hash maps have another order each time; many words and many ties make that show.
    let train = || Tokenizer::train_bpe(&Sources::texts([("a", text(1)), ("b", text(2))]), 700);
    let first = train().unwrap().to_json();
    for _ in 0..3 {
        assert!(train().unwrap().to_json() == first);
    }
    let other = Tokenizer::train_bpe(&Sources::texts([("b", text(2)), ("a", text(1))]), 700);
    assert!(other.unwrap().to_json() == first, "the order of documents does not matter");
}

#[test]
fn a_size_that_cannot_be_is_an_error() {
    let train = |size| error(Tokenizer::train_bpe(&rhymes(), size));
    assert_eq!(train(257), "tokenizer of the given size: 257 tokens, expected 258 or more");
    let many = train(100_000);
    let expected = "tokens, expected 100000";
    assert!(
        many.starts_with("tokenizer of the given size: the text gives ")
            && many.ends_with(expected)
    );
    let none = Tokenizer::train_bpe(&Sources::texts([("a", "")]), 300);
    let why = "tokenizer of the given size: the text gives 257 tokens, expected 300";
    assert_eq!(error(none), why);
}

/// A tokenizer of words, with `more` in its file.
fn of_words(vocab: &str, more: &str) -> String {
    let model = format!(r#"{{"type": "WordLevel", "unk_token": "?", "vocab": {{{vocab}}}}}"#);
    format!(
        r#"{{"version": "1.0", {more} "pre_tokenizer": {{"type": "Whitespace"}},
            "model": {model}}}"#
    )
}

#[test]
fn a_tokenizer_file_is_read() {
    let path = std::env::temp_dir().join(format!("taipan-tokenizer-{}.json", std::process::id()));
    let json = of_words(r#""?": 0, "cat": 1, "the": 7"#, "");
    fs::write(&path, &json).unwrap();
    let tokenizer = Tokenizer::from_file(&path).unwrap();
    assert_eq!(tokenizer.encode("the cat dog").unwrap(), [7, 1, 0]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.eos_token_id()), (8, None));
    assert_eq!(tokenizer.to_json(), json, "as it was");
    fs::write(&path, "{").unwrap();
    let shown = path.display();
    assert!(error(Tokenizer::from_file(&path)).starts_with(&format!("{shown}: not JSON: EOF")));
    fs::write(&path, r#"{"model": {"type": "Magic"}}"#).unwrap();
    assert!(error(Tokenizer::from_file(&path)).starts_with(&format!("{shown}: ")));
    fs::write(&path, of_words("", "")).unwrap();
    assert!(error(Tokenizer::from_file(&path)).ends_with("no tokens in it"));
    fs::remove_file(&path).unwrap();
    assert!(error(Tokenizer::from_file(&path)).starts_with(&format!("{shown}: No such file")));
}

#[test]
fn the_end_of_a_document_is_found_by_its_usual_names() {
    for (vocab, end) in [
        (r#""?": 0, "</s>": 1, "<|endoftext|>": 2"#, Some(("<|endoftext|>", 2))),
        (r#""?": 0, "</s>": 5"#, Some(("</s>", 5))),
        (r#""?": 0, "<eos>": 3"#, Some(("<eos>", 3))),
        (r#""?": 0, "<|end_of_text|>": 9"#, Some(("<|end_of_text|>", 9))),
        (r#""?": 0, "eos": 9"#, None),
    ] {
        let tokenizer = Tokenizer::from_json(&of_words(vocab, "")).unwrap();
        assert_eq!(tokenizer.eos_token().zip(tokenizer.eos_token_id()), end);
    }
}

#[test]
fn nothing_is_cut_off_padded_or_added_to_a_text() {
    let more = r#""truncation": {"direction": "Right", "max_length": 2,
            "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "?"},
        "post_processor": {"type": "BertProcessing", "sep": ["a", 1], "cls": ["a", 1]},"#;
    let json = of_words(r#""?": 0, "a": 1, "b": 2"#, more);
    let theirs: tokenizers::Tokenizer = json.parse().unwrap();
    assert_eq!(theirs.encode("b b b b", true).unwrap().get_ids().len(), 9);
    let tokenizer = Tokenizer::from_json(&json).unwrap();
    assert_eq!(tokenizer.encode("b b b b").unwrap(), [2; 4]);
}

#[test]
fn an_id_outside_the_vocabulary_is_an_error() {
    let bpe = Tokenizer::train_bpe(&rhymes(), 260).unwrap();
    assert_eq!(
        error(Tokenizer::bytes().decode(&[1, 256])),
        "decode: token 256, expected less than 256"
    );
    assert_eq!(error(bpe.decode(&[260])), "decode: token 260, expected less than 260");
    assert_eq!(error(bpe.stream().push(999)), "decode: token 999, expected less than 260");
}

#[test]
fn special_tokens_are_no_text() {
    let bpe = Tokenizer::train_bpe(&rhymes(), 260).unwrap();
    let ids = [&[0], &bpe.encode("the").unwrap()[..], &[0]].concat();
    assert_eq!(bpe.decode(&ids).unwrap(), "the");
}

#[test]
fn a_stream_shows_what_is_no_text_with_the_next_that_is() {
    let bytes = Tokenizer::bytes();
    let mut stream = bytes.stream();
    assert_eq!([0xff, 0xe2, 0x82].map(|id| stream.push(id).unwrap()).concat(), "");
    assert_eq!(stream.push(b'a'.into()).unwrap(), "\u{fffd}\u{fffd}a");
    assert_eq!(stream.push(0xc3).unwrap(), "");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_shows_the_text_and_only_whole_characters(text in "(\\PC|[ a-c\n\u{fffd}日]){0,40}") {
        let bpe = Tokenizer::train_bpe(&rhymes(), 280).unwrap();
        for tokenizer in [Tokenizer::bytes(), bpe] {
            let (mut stream, mut shown) = (tokenizer.stream(), String::new());
            for id in tokenizer.encode(&text).unwrap() {
                shown += &stream.push(id).unwrap();
                prop_assert!(text.starts_with(&shown), "{shown:?} of {text:?}");
            }
            shown += &stream.finish().unwrap();
            prop_assert_eq!(&shown, &text);
        }
    }

    #[test]
    fn any_text_survives_a_round_trip(text in any::<String>()) {
        let bpe = Tokenizer::train_bpe(&rhymes(), 280).unwrap();
        for tokenizer in [Tokenizer::bytes(), bpe] {
            let decoded = tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap();
            prop_assert_eq!(decoded, text.clone());
        }
    }
}

//! Text of tokens, and where it ends.

use std::ops::ControlFlow;

use taipan::{DType, Device};
use taipan_lm::{CompletionOptions, FinishReason, Generation, Sampler, TextUntil, Tokenizer};

use crate::{model, prompt};

fn until(text: &str, stops: &[&str]) -> (String, bool) {
    let tokenizer = Tokenizer::bytes();
    let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
    let mut found = TextUntil::new(&tokenizer, &stops).unwrap();
    let mut shown = String::new();
    for id in tokenizer.encode(text).unwrap() {
        shown += &found.push(id).unwrap();
    }
    let is_stopped = found.is_stopped();
    (shown + &found.finish().unwrap(), is_stopped)
}

#[test]
fn a_stop_text_ends_it_wherever_tokens_end() {
    let cases: [(&str, &[&str], &str, bool); 11] = [
        ("one two", &[], "one two", false),
        ("one\n\ntwo", &["\n\n"], "one", true),
        ("a#b##c###d", &["###"], "a#b##c", true),
        ("aab", &["ab"], "a", true),
        ("aaab", &["aab", "zz"], "a", true),
        ("abc", &["abcd"], "abc", false),
        ("naïve é end", &["é"], "naïve ", true),
        // Of two, the one that begins first.
        ("x abc", &["bc", "abc"], "x ", true),
        ("x ab", &["abc", "b"], "x a", true),
        ("stop", &["stop"], "", true),
        ("日本日本語", &["日本語"], "日本", true),
    ];
    for (text, stops, expected, is_stopped) in cases {
        assert_eq!(until(text, stops), (expected.into(), is_stopped), "{text:?} {stops:?}");
    }
    assert!(TextUntil::new(&Tokenizer::bytes(), &["".into()]).is_err());
}

/// Bytes that are no text are held back, but not for ever.
#[test]
fn invalid_text_takes_constant_memory() {
    let tokenizer = Tokenizer::bytes();
    let mut stream = tokenizer.stream();
    let shown: String = (0..100_000).map(|_| stream.push(0xff).unwrap()).collect();
    assert!(shown.chars().count() > 99_900 && shown.chars().all(|c| c == '\u{fffd}'));
    // And every character that is one comes through.
    let text = "é€😀 日本語\u{fffd} x".repeat(50);
    let mut stream = tokenizer.stream();
    let ids = tokenizer.encode(&text).unwrap();
    let shown: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    assert_eq!(shown + &stream.finish().unwrap(), text);
}

#[test]
fn texts_end_for_a_reason() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let tokenizer = Tokenizer::bytes();
    let mut options = CompletionOptions {
        tokenizer: Some(&tokenizer),
        max_tokens: 40,
        stops: Vec::new(),
        eos_token_id: None,
        log_probs: Some(2),
    };
    let run = |options: &CompletionOptions, most: usize| {
        let generation = Generation::new(&model, Sampler::default()).unwrap();
        let mut generation = generation.with_vocab_size(256).unwrap();
        generation.prompt(&prompt(3)).unwrap();
        let mut generation = generation.fork(2).unwrap();
        let mut shown = [String::new(), String::new()];
        let mut calls = 0;
        let texts = pollster::block_on(generation.complete(options, |sequence, text| {
            shown[sequence] += text;
            calls += 1;
            if calls == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }));
        let texts = texts.unwrap();
        for (text, shown) in texts.iter().zip(shown) {
            assert_eq!(text.text, shown);
            assert_eq!(text.log_probs.len(), text.ids.len());
            assert!(text.log_probs.iter().zip(&text.ids).all(|(of, id)| of.id == *id));
        }
        texts
    };
    let whole = run(&options, usize::MAX);
    assert!(
        whole.iter().all(|text| text.finish_reason == FinishReason::Length && text.ids.len() == 40)
    );
    assert_eq!(whole[0].text, tokenizer.decode(&whole[0].ids).unwrap());

    // A token of the first text ends it; the other one is as it was.
    let eos = whole[0].ids.iter().find(|id| !whole[1].ids.contains(id)).copied().unwrap();
    let at = whole[0].ids.iter().position(|id| *id == eos).unwrap();
    options.eos_token_id = Some(eos);
    let ended = run(&options, usize::MAX);
    assert_eq!(
        (ended[0].finish_reason, &ended[0].ids[..]),
        (FinishReason::Eos, &whole[0].ids[..=at])
    );
    assert_eq!(ended[1], whole[1]);

    let stop: String = whole[1].text.chars().filter(|c| c.is_ascii_graphic()).take(1).collect();
    options = CompletionOptions { stops: vec![stop.clone()], eos_token_id: None, ..options };
    let stopped = run(&options, usize::MAX);
    assert_eq!(stopped[1].finish_reason, FinishReason::Stop);
    assert_eq!(stopped[1].text, whole[1].text.split(&stop).next().unwrap());

    options.stops.clear();
    let interrupted = run(&options, 5);
    assert!(interrupted.iter().all(|text| text.finish_reason == FinishReason::Interrupted));
    assert_eq!(interrupted[0].ids, whole[0].ids[..3]);
}

//! What is printed, and where it ends.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::harness::{Harness, numbers, run, succeed};

#[test]
fn a_text_is_the_same_streamed_or_not_and_in_json() {
    let harness = Harness::new("same");
    let arguments = ["--prompt", "ab", "-n", "200", "--ignore-eos", "--temperature", "2"];
    let (streamed, _) = run(&mut harness.generate(&arguments));
    let (whole, _) = run(harness.generate(&arguments).arg("--no-stream"));
    assert_eq!(streamed, whole);
    let json = &harness.json(&arguments)[0];
    assert_eq!(
        String::from_utf8(streamed).unwrap(),
        format!("{}\n", json["text"].as_str().unwrap())
    );
    let ids: Vec<u8> = numbers(&json["ids"]).into_iter().map(|id| id as u8).collect();
    let text = String::from_utf8_lossy(&ids);
    assert!(text.contains('\u{fffd}') && text.chars().any(|c| c.is_control()), "{text:?}");
    assert_eq!(json["text"], *text);
}

#[test]
fn texts_end_at_a_stop_text_or_the_end_of_text_token() {
    let harness = Harness::new("ends");
    let arguments = ["--prompt", "ab", "-n", "400", "--temperature", "1.5", "--seed", "4"];
    let whole = &harness.json(&[&arguments[..], &["--ignore-eos"]].concat())[0];
    assert_eq!(whole["finish_reason"], "length");
    let text = whole["text"].as_str().unwrap();
    let ended = &harness.json(&arguments)[0];
    assert_eq!(ended["finish_reason"], "eos");
    let ids = numbers(&ended["ids"]);
    assert_eq!(ids, numbers(&whole["ids"])[..ids.len()]);
    assert_eq!(ids.iter().position(|id| *id == 0), Some(ids.len() - 1));

    // Two characters in a row, somewhere in the middle.
    let stop: String = text.chars().skip(60).filter(|c| c.is_ascii_graphic()).take(1).collect();
    let at = text.find(&stop).unwrap();
    let stop: String = text[at..].chars().take(2).collect();
    let flags = ["--ignore-eos", "--stop", "no such text", "--stop", &stop];
    let stopped = &harness.json(&[&arguments[..], &flags].concat())[0];
    assert_eq!((&stopped["finish_reason"], &stopped["text"]), (&"stop".into(), &text[..at].into()));
    let streamed = run(harness.generate(&arguments).args(flags)).0;
    assert_eq!(String::from_utf8(streamed).unwrap(), format!("{}\n", &text[..at]));
}

#[test]
fn a_batch_is_several_texts() {
    let harness = Harness::new("batch");
    let arguments = ["--prompt", "ab", "-n", "10", "--ignore-eos", "--batch", "3"];
    let texts = harness.json(&arguments);
    assert_eq!(texts.len(), 3);
    let ids: Vec<_> = texts.iter().map(|text| numbers(&text["ids"])).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
    let shown = succeed(&mut harness.generate(&arguments));
    let expected: String = (1..)
        .zip(&texts)
        .map(|(i, text)| format!("==> {i} <==\n{}\n", text["text"].as_str().unwrap()))
        .collect();
    assert_eq!(shown, expected);
}

#[test]
fn log_probabilities_of_tokens_and_alternatives() {
    let harness = Harness::new("logprobs");
    let arguments = ["--prompt", "ab", "-n", "5", "--ignore-eos", "--temperature", "0"];
    let text = &harness.json(&[&arguments[..], &["--logprobs=3"]].concat())[0];
    let tokens = text["logprobs"].as_array().unwrap();
    assert_eq!(tokens.len(), 5);
    for (token, id) in tokens.iter().zip(numbers(&text["ids"])) {
        assert_eq!(token["id"], id);
        let top = token["top"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // The likeliest was taken.
        assert_eq!((&top[0]["id"], &top[0]["logprob"]), (&token["id"], &token["logprob"]));
        let log_probs: Vec<f64> = top.iter().map(|top| top["logprob"].as_f64().unwrap()).collect();
        assert!(log_probs[0] >= log_probs[1] && log_probs[1] >= log_probs[2] && log_probs[0] < 0.0);
    }
    let shown = succeed(harness.generate(&arguments).arg("--logprobs"));
    assert_eq!(shown.lines().count(), 5, "{shown}");
    let likeliest = tokens[0]["logprob"].as_f64().unwrap();
    let line = shown.lines().next().unwrap();
    assert_eq!(line.matches(&format!(" {likeliest:.4}")).count(), 2, "{line}");
    assert_eq!(line.split(", ").count(), 5, "{line}");
}

/// It would run for hours.
#[test]
fn a_reader_that_leaves_ends_it_without_an_error() {
    let harness = Harness::new("closed");
    let mut command = harness.generate(&["--prompt", "ab", "-n", "1000000000", "--ignore-eos"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 100]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.starts_with("prompt ") && stderr.lines().count() == 1, "{stderr}");
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_text_and_its_state_is_saved() {
    let harness = Harness::new("signal");
    let flags = ["--prompt", "ab", "-n", "1000000000", "--ignore-eos", "--save-state", "state"];
    let mut command = harness.generate(&flags);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 100]).unwrap();
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(rest.last(), Some(&b'\n'));
    assert_eq!(harness.ids(&["--load-state", "state", "-n", "3", "--ignore-eos"]).len(), 3);
}

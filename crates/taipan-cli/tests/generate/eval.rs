//! `taipan eval`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use taipan_lm::{Batch, LanguageModel};

use crate::harness::{Harness, fail, model, succeed};

fn eval(harness: &Harness, arguments: &[&str]) -> Value {
    let all = [&["eval", "model"], arguments, &["--json"]].concat();
    serde_json::from_str(&succeed(&mut harness.taipan(&all))).unwrap()
}

/// The sum of `−ln p` of the last `count` tokens.
fn nats(model: &LanguageModel, ids: &[u32], count: usize) -> f64 {
    let length = ids.len() - 1;
    let mut targets = ids[1..].to_vec();
    targets[..length - count].fill(taipan_lm::IGNORE);
    let ids = ids[..length].to_vec();
    let seq_start = vec![0; length];
    let batch = Batch { batch_size: 1, block_size: length, ids, targets, seq_start };
    model.loss(&batch).unwrap().item().unwrap() * count as f64
}

fn close(found: &Value, expected: f64, tolerance: f64) {
    let found = found.as_f64().unwrap();
    let error = (found - expected).abs() / expected;
    assert!(error < tolerance, "{found}, expected {expected}: off by {error:e}");
}

#[derive(Deserialize)]
struct Golden {
    length: usize,
    ids: Vec<u32>,
    loss: f64,
}

/// A model that transformers saved, with all of its options, and the loss that it computed.
#[test]
fn the_loss_of_ids_is_that_of_transformers() {
    let harness = Harness::new("golden");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../taipan-lm/tests/golden");
    let text = std::fs::read_to_string(golden.join("options/values.json")).unwrap();
    let Golden { length, ids, loss } = serde_json::from_str(&text).unwrap();
    let lines: String = ids.chunks(length + 1).map(|row| format!("{row:?}\n")).collect();
    harness.write("rows.jsonl", lines + "\n");
    let path = golden.join("options");
    let arguments = ["eval", path.to_str().unwrap(), "--ids", "rows.jsonl", "--json"];
    for (dtype, tolerance) in [("f32", 2e-6), ("f64", 1e-12)] {
        let text = succeed(harness.taipan(&arguments).args(["--dtype", dtype]));
        let report: Value = serde_json::from_str(&text).unwrap();
        close(&report["loss"], loss, tolerance);
        close(&report["perplexity"], loss.exp(), 10.0 * tolerance);
        let rows = ids.len() / (length + 1);
        assert_eq!(
            (&report["tokens"], &report["documents"]),
            (&(rows * length).into(), &rows.into())
        );
        assert!(report["bits_per_byte"].is_null());
    }
}

#[test]
fn texts_through_the_state_and_through_windows() {
    let harness = Harness::new("texts");
    let model = model(300, 1);
    let texts: Vec<String> = ["one, two; ", "é, "].iter().map(|text| text.repeat(150)).collect();
    harness.write("one.txt", &texts[0]);
    harness.write("two.txt", &texts[1]);
    // Every document begins with the end-of-text token, which is not predicted.
    let mut expected = 0.0;
    for text in &texts {
        let ids: Vec<u32> = [0].into_iter().chain(text.bytes().map(u32::from)).collect();
        expected += nats(&model, &ids, text.len());
    }
    let bytes = texts.iter().map(String::len).sum::<usize>();
    let report = eval(&harness, &["one.txt", "two.txt"]);
    close(&report["loss"], expected / bytes as f64, 1e-6);
    close(&report["bits_per_byte"], expected / bytes as f64 / 2f64.ln(), 1e-6);
    assert_eq!((&report["bytes"], &report["tokens"]), (&bytes.into(), &bytes.into()));
    assert_eq!(report["documents"], 2);
    let shown = succeed(&mut harness.taipan(&["eval", "model", "*.txt"]));
    let line = format!("loss           {:.4} nats per token\n", expected / bytes as f64);
    assert!(shown.starts_with(&line) && shown.contains("\nbits per byte  "), "{shown}");

    // Windows have nothing before them: their first tokens are not predicted.
    let ids: Vec<u32> = texts[0].bytes().map(u32::from).collect();
    let window = |ids: &[u32]| nats(&model, ids, ids.len() - 1);
    let expected: f64 = ids.chunks(100).map(window).sum();
    let tokens = ids.len() - ids.len().div_ceil(100);
    let report = eval(&harness, &["one.txt", "--window", "100"]);
    close(&report["loss"], expected / tokens as f64, 1e-6);
    assert_eq!((&report["tokens"], &report["bytes"]), (&tokens.into(), &tokens.into()));
    let report = eval(&harness, &["one.txt", "--window", "100", "--stride", "50"]);
    let mut expected = window(&ids[..100]);
    for begin in (50..ids.len() - 50).step_by(50) {
        expected += nats(&model, &ids[begin..begin + 100], 50);
    }
    assert_eq!(report["tokens"], ids.len() - 1);
    close(&report["loss"], expected / (ids.len() - 1) as f64, 1e-6);
}

/// Accuracy by the sum of log-probabilities, and by their mean over characters.
#[test]
fn questions_are_counted_as_in_lm_evaluation_harness() {
    let harness = Harness::new("choices");
    let model = model(300, 1);
    let choices = ["yes", "no, never", "é", "perhaps not"];
    let (mut lines, mut right, mut right_norm) = (String::new(), 0, 0);
    for i in 0..20 {
        let prompt = format!("Question {i}: {}?", "x".repeat(i));
        let scores = choices.map(|choice| {
            let text = format!("{prompt} {choice}");
            let ids: Vec<u32> = [0].into_iter().chain(text.bytes().map(u32::from)).collect();
            -nats(&model, &ids, choice.len() + 1)
        });
        let best =
            |of: &dyn Fn(usize) -> f64| (0..4).max_by(|a, b| of(*a).total_cmp(&of(*b))).unwrap();
        // The space may come with either; without, it is added, and is not part of the choice.
        let (end, start) = [("", ""), (" ", ""), ("", " ")][i % 3];
        let shown = choices.map(|choice| format!("{start}{choice}"));
        let by_sum = best(&|i| scores[i]);
        let by_mean = best(&|i| scores[i] / shown[i].chars().count() as f64);
        let answer = if i < 13 { by_sum } else { (by_mean + i) % 4 };
        right += usize::from(by_sum == answer);
        right_norm += usize::from(by_mean == answer);
        let prompt = format!("{prompt}{end}");
        let answer = if i == 5 { Value::from(shown[answer].as_str()) } else { answer.into() };
        lines += &format!(
            "{}\n",
            serde_json::json!({
                "prompt": prompt, "choices": shown, "answer": answer, "id": i,
            })
        );
    }
    assert!(right >= 13 && right != right_norm, "{right}, {right_norm}");
    harness.write("questions.jsonl", lines);
    let report = eval(&harness, &["--choices", "questions.jsonl"]);
    assert_eq!(report["acc"], right as f64 / 20.0);
    assert_eq!(report["acc_norm"], right_norm as f64 / 20.0);
    assert_eq!(report["questions"], 20);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let harness = Harness::new("eval-errors");
    harness.write("text", "some text");
    harness.write("wrong.jsonl", "[1, 2]\n[1, 300]\n");
    harness.write("broken.jsonl", "[1, 2]\n{\n");
    harness.write("single.jsonl", "[1]\n");
    harness.write("answer.jsonl", r#"{"prompt": "a", "choices": ["b"], "answer": 1}"#);
    harness.write("choice.jsonl", r#"{"prompt": "a", "choices": ["b"], "answer": "c"}"#);
    for (arguments, code, expected) in [
        (&[][..], 2, "nothing to measure, expected FILES, --ids or --choices"),
        (&["text", "--window", "1"], 2, "--window is 1, expected 2 or more"),
        (
            &["text", "--window", "4", "--stride", "5"],
            2,
            "--stride is 5, expected 1 to --window, 4",
        ),
        (&["nowhere"], 1, "nowhere: no such file"),
        (
            &["--ids", "wrong.jsonl"],
            1,
            "wrong.jsonl:2: evaluate: token 300, expected less than 300",
        ),
        (&["--ids", "broken.jsonl"], 1, "broken.jsonl:2: "),
        (&["--ids", "single.jsonl"], 1, "nothing to predict, expected two tokens or more"),
        (&["--choices", "answer.jsonl"], 1, "answer.jsonl:1: answer is 1, expected less than 1"),
        (
            &["--choices", "choice.jsonl"],
            1,
            "choice.jsonl:1: answer is \"c\", expected one of the choices",
        ),
        (&["--choices", "text"], 1, "text:1: "),
    ] {
        let error = fail(harness.taipan(&["eval", "model"]).args(arguments), code);
        assert!(error.starts_with(&format!("error: {expected}")), "{arguments:?}: {error}");
    }
    std::fs::remove_file(harness.path("model/tokenizer.json")).unwrap();
    let error = fail(&mut harness.taipan(&["eval", "model", "text"]), 1);
    assert_eq!(error, "error: model: no tokenizer.json; without one, give token ids by --ids\n");
}

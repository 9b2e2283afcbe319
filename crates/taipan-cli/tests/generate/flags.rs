//! Prompts, settings of the sampler, and what is refused.

use crate::harness::{Harness, fail, feed, model, numbers, run, succeed};

#[test]
fn a_prompt_is_a_text_a_file_or_standard_input() {
    let harness = Harness::new("prompts");
    let common = ["-n", "20", "--seed", "3", "--ignore-eos"];
    let (text, stderr) = run(harness.generate(&common).args(["--prompt", "né"]));
    assert!(text.len() >= 20, "{text:?}");
    assert!(stderr.starts_with("prompt 4 tokens in "), "{stderr}");
    assert!(stderr.contains("; 20 generated in ") && stderr.ends_with(" tokens/s\n"), "{stderr}");
    harness.write("prompt", "né\n");
    let from_file = run(harness.generate(&common).args(["--prompt-file", "prompt"])).0;
    assert_eq!(from_file, text);
    assert_eq!(feed(&mut harness.generate(&common), "né".as_bytes()).stdout, text);
    assert_eq!(feed(&mut harness.generate(&common), "né\r\n".as_bytes()).stdout, text);
    // The token that begins a document, and the two bytes of é.
    let ids = run(harness.generate(&common).args(["--prompt-ids", "0,110,195,169"])).0;
    assert_eq!(ids, text);
    let other = run(harness.generate(&common).args(["--prompt-ids", "110,195,169"])).0;
    assert_ne!(other, text);
    let dash = harness.json(&["--prompt", "-a", "--stop", "--", "-n", "1"]);
    assert_eq!(numbers(&dash[0]["prompt_ids"]), [0, 45, 97]);
    // Nothing at all begins a document.
    assert!(feed(&mut harness.generate(&common), b"").status.success());
}

#[test]
fn the_same_settings_give_the_same_text() {
    let harness = Harness::new("settings");
    let ids = |arguments: &[&str]| {
        harness.ids(&[&["--prompt", "ab", "-n", "40", "--ignore-eos"], arguments].concat())
    };
    let text = ids(&["--seed", "1"]);
    assert_eq!(text.len(), 40);
    assert_eq!(ids(&["--seed", "1"]), text);
    let others: [&[&str]; 6] = [
        &["--seed", "2"],
        &["--seed", "1", "--temperature", "2"],
        &["--seed", "1", "--temperature", "2", "--top-k", "3"],
        &["--seed", "1", "--temperature", "2", "--top-p", "0.3"],
        &["--seed", "1", "--temperature", "2", "--min-p", "0.5"],
        &["--seed", "1", "--repetition-penalty", "2"],
    ];
    let texts: Vec<_> = others.iter().map(|arguments| ids(arguments)).collect();
    for (i, other) in texts.iter().enumerate() {
        assert!(*other != text && !texts[..i].contains(other), "{:?}", others[i]);
    }
    let greedy = ids(&["--temperature", "0"]);
    assert_eq!(ids(&["--temperature", "0", "--seed", "9"]), greedy);
    assert_eq!(ids(&["--top-k", "1"]), greedy);
}

/// The model has more rows than there are bytes.
#[test]
fn padding_of_the_vocabulary_is_never_sampled() {
    let harness = Harness::new("padding");
    let ids = harness.ids(&["-n", "300", "--temperature", "9", "--ignore-eos"]);
    assert!(ids.len() == 300 && ids.iter().all(|id| *id < 256), "{ids:?}");
}

#[test]
fn a_model_without_a_tokenizer_works_by_ids() {
    let harness = Harness::new("ids");
    std::fs::remove_file(harness.path("model/tokenizer.json")).unwrap();
    let error = fail(&mut harness.generate(&["--prompt", "a"]), 1);
    let expected = "error: model: no tokenizer.json; without one, give token ids by --prompt-ids\n";
    assert_eq!(error, expected);
    let arguments = ["--prompt-ids", "5,9,2", "-n", "30", "--temperature", "5"];
    let texts = harness.json(&arguments);
    let ids = numbers(&texts[0]["ids"]);
    assert_eq!((ids.len(), numbers(&texts[0]["prompt_ids"])), (30, vec![5, 9, 2]));
    assert!(texts[0]["text"].is_null() && texts[0]["finish_reason"] == "length");
    assert!(ids.iter().any(|id| *id >= 256), "nothing says that these are padding: {ids:?}");
    let shown = succeed(&mut harness.generate(&arguments));
    let joined: Vec<String> = ids.iter().map(u64::to_string).collect();
    assert_eq!(shown, joined.join(",") + "\n");
}

#[test]
fn a_run_is_its_model_or_its_best_checkpoint() {
    let harness = Harness::new("run");
    harness.write("text", "to be or not to be, that is the question\n".repeat(200));
    let train = "train text --out run --d-model 16 --n-layer 1 --d-state 4 --steps 20 \
                 --batch-size 2 --block-size 16 --eval-tokens 256 --eval-interval 10 \
                 --save-interval 10 --sample-tokens 12 --threads 1 --sample question --device cpu";
    let stdout = succeed(&mut harness.taipan(&train.split_whitespace().collect::<Vec<_>>()));
    let samples = stdout.lines().filter(|line| line.starts_with("  sample: question")).count();
    assert_eq!(samples, 1, "at the evaluation before the end: {stdout}");
    let generate = |path: &str| {
        succeed(&mut harness.taipan(&["generate", path, "--prompt", "question", "-n", "12"]))
    };
    let text = generate("run");
    let last = stdout.lines().skip_while(|line| !line.starts_with("held out")).nth(2).unwrap();
    // Training shows what a terminal would obey as signs.
    let plain = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    let shown: String = text.chars().map(plain).collect();
    assert!(shown.starts_with(last.strip_prefix("question").unwrap()), "{text:?} {stdout}");
    assert_eq!(generate("run/checkpoint-20"), text);
    let other = generate("run/checkpoint-10");
    for file in ["config.json", "model.safetensors"] {
        std::fs::remove_file(harness.path("run").join(file)).unwrap();
    }
    // The one with the lowest loss.
    assert_eq!(generate("run"), text);
    std::fs::remove_dir_all(harness.path("run/checkpoint-20")).unwrap();
    assert_eq!(generate("run"), other);
    std::fs::remove_dir_all(harness.path("run/checkpoint-10")).unwrap();
    let error = fail(&mut harness.taipan(&["generate", "run", "--prompt", "a"]), 1);
    assert!(error.starts_with("error: run: no config.json and no checkpoint in it"), "{error}");
}

#[test]
fn wrong_usage_is_refused() {
    let harness = Harness::new("usage");
    harness.write("latin", b"caf\xe9");
    for (arguments, expected) in [
        (
            &["--temperature", "nan"][..],
            "--temperature is NaN, expected a finite number of 0 or more",
        ),
        (&["--top-p", "0"], "--top-p is 0, expected above 0 and at most 1"),
        (&["--top-k", "0"], "--top-k is 0, expected 1 or more"),
        (&["--min-p", "2"], "--min-p is 2, expected 0 to 1"),
        (&["--repetition-penalty", "0"], "--repetition-penalty is 0, expected a positive number"),
        (&["--stop", ""], "--stop is empty, expected a text"),
    ] {
        let error = fail(harness.generate(&["--prompt", "a"]).args(arguments), 2);
        assert!(error.starts_with(&format!("error: {expected}")), "{arguments:?}: {error}");
    }
    for arguments in [
        &["--prompt", "a", "--prompt-ids", "1"][..],
        &["--prompt-ids", "1,x"],
        &["--batch", "0"],
        &["--dtype", "f8"],
        &["--load-state", "a", "--cache", "b"],
    ] {
        fail(&mut harness.generate(arguments), 2);
    }
    for (arguments, expected) in [
        (&["--prompt-ids", "1,300"][..], "generate: token 300, expected less than 300"),
        (&["--prompt-file", "nowhere"], "nowhere: No such file"),
        (&["--prompt-file", "latin"], "latin: not valid UTF-8: the byte at offset 3 is 0xe9"),
        (&["--load-state", "nowhere"], "nowhere: No such file"),
    ] {
        let error = fail(&mut harness.generate(arguments), 1);
        assert!(error.starts_with(&format!("error: {expected}")), "{arguments:?}: {error}");
    }
    let error = fail(&mut harness.taipan(&["generate", "nowhere", "--prompt", "a"]), 1);
    assert!(error.starts_with("error: nowhere"), "{error}");
    // A text can only be empty where nothing has to come before it.
    harness.save("other", &model(300, 2));
    let letters =
        r#"{"version": "1.0", "model": {"type": "BPE", "merges": [], "vocab": {"A": 0}}}"#;
    harness.write("other/tokenizer.json", letters);
    let error = fail(&mut harness.taipan(&["generate", "other", "--prompt", ""]), 2);
    assert_eq!(error, "error: the prompt is empty, and there is no token to begin with\n");
}

//! States in files and in a cache.

use serde_json::Value;

use crate::harness::{Harness, fail, model, numbers, run};

#[test]
fn a_continuation_is_that_without_a_stop() {
    let harness = Harness::new("continuation");
    let sampler = ["--ignore-eos", "--repetition-penalty", "1.2", "--top-p", "0.9"];
    let with = |arguments: &[&str]| harness.json(&[arguments, &sampler].concat());
    let begin = ["--prompt", "ab", "--seed", "7"];
    for batch in [&[][..], &["--batch", "2"]] {
        let whole = with(&[&begin[..], batch, &["-n", "30"]].concat());
        let first = with(&[&begin[..], batch, &["-n", "10", "--save-state", "state"]].concat());
        // The seed comes with the state, and so do the texts of a batch.
        let second = with(&["--load-state", "state", "-n", "15", "--save-state", "state"]);
        let third = with(&["--load-state", "state", "-n", "5"]);
        for (i, whole) in whole.iter().enumerate() {
            let parts = [&first, &second, &third].map(|texts| numbers(&texts[i]["ids"]));
            assert_eq!(parts.concat(), numbers(&whole["ids"]), "{batch:?}");
        }
        assert!([first, second, third].iter().all(|texts| texts.len() == whole.len()));
    }
    let forked = with(&["--load-state", "state", "-n", "5", "--batch", "2"]);
    assert_eq!(forked.len(), 2);
    let error = fail(&mut harness.generate(&["--load-state", "state", "--batch", "3"]), 2);
    assert_eq!(error, "error: --batch is 3, but --load-state has 2 texts\n");
}

/// A prompt after a state continues its text: nothing begins there.
#[test]
fn a_prompt_comes_after_a_state() {
    let harness = Harness::new("prompt");
    run(&mut harness.generate(&["--prompt", "ab", "-n", "0", "--save-state", "state"]));
    let ids = |arguments: &[&str]| {
        harness.json(&[arguments, &["-n", "20", "--ignore-eos"]].concat())[0].clone()
    };
    let continued = ids(&["--load-state", "state", "--prompt", "c"]);
    assert_eq!(numbers(&continued["prompt_ids"]), [99]);
    let whole = ids(&["--prompt", "abc"]);
    assert_eq!(numbers(&whole["prompt_ids"]), [0, 97, 98, 99]);
    // Rounding may differ, but not by enough to matter here.
    assert_eq!(continued["ids"], whole["ids"]);
}

#[test]
fn the_state_of_another_model_is_refused() {
    let harness = Harness::new("another");
    harness.save("other", &model(300, 2));
    run(&mut harness.generate(&["--prompt", "ab", "-n", "3", "--save-state", "state"]));
    let error = fail(&mut harness.taipan(&["generate", "other", "--load-state", "state"]), 1);
    assert!(error.starts_with("error: state: a state of the model "), "{error}");
    // The same weights in another type are another model.
    let error = fail(&mut harness.generate(&["--load-state", "state", "--dtype", "bf16"]), 1);
    assert!(error.contains("vocabulary 300, f32), expected one of "), "{error}");
    harness.write("state", "{}");
    let error = fail(&mut harness.generate(&["--load-state", "state"]), 1);
    assert!(error.starts_with("error: state: 2 bytes found"), "{error}");
}

#[test]
fn a_long_prompt_asked_again_is_in_the_cache() {
    let harness = Harness::new("cache");
    harness.write("long", "It was the best of times, it was the worst of times. ".repeat(20));
    let ask = |arguments: &[&str]| -> (Value, String) {
        let common = ["--prompt-file", "long", "-n", "20", "--json"];
        let (stdout, stderr) = run(harness.generate(&common).args(arguments));
        (serde_json::from_slice(&stdout).unwrap(), stderr)
    };
    let (whole, _) = ask(&[]);
    let (first, stderr) = ask(&["--cache", "states"]);
    assert!(stderr.starts_with("prompt 1061 tokens in "), "{stderr}");
    let (again, stderr) = ask(&["--cache", "states"]);
    assert!(stderr.starts_with("prompt 1061 tokens (1061 of them from the cache) in "), "{stderr}");
    assert!(whole == first && first == again);
    harness.write("long", "It was the best of times, it was the worst of times. ".repeat(19));
    let (other, _) = ask(&[]);
    let (cached, stderr) = ask(&["--cache", "states", "--cache-size", "0"]);
    assert!(stderr.starts_with("prompt 1008 tokens (768 of them from the cache) in "), "{stderr}");
    assert_eq!(cached, other);
    assert_eq!(std::fs::read_dir(harness.path("states")).unwrap().count(), 0);
    // What cannot be read is reported, and the text is the same.
    ask(&["--cache", "states"]);
    for entry in std::fs::read_dir(harness.path("states")).unwrap() {
        std::fs::write(entry.unwrap().path(), "no state").unwrap();
    }
    let (damaged, stderr) = ask(&["--cache", "states"]);
    assert_eq!(damaged, other);
    assert!(stderr.starts_with("warning: states/"), "{stderr}");
    assert!(stderr.contains("; it is removed\n"), "{stderr}");
}

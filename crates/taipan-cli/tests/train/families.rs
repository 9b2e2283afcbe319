//! Other mixers, and adapters, from the command line.

use serde_json::Value;

use crate::harness::{Harness, fail, succeed};

#[test]
fn mamba2_is_trained_and_resumed() {
    let harness = Harness::new("mamba2");
    let arch = ["--arch", "mamba2", "--head-dim", "8"];
    let with = |more: &[&'static str]| [&arch[..], more].concat();
    let text = succeed(&mut harness.train(&with(&["--out", "whole", "--steps", "6"])));
    assert!(text.contains("Mamba-2, width 16, layers 1, state 4, tied head, f32"), "{text}");
    let stop = with(&["--out", "parts", "--steps", "6", "--stop-after", "3"]);
    succeed(&mut harness.train(&stop));
    succeed(&mut harness.bare(&["--resume", "--out", "parts"]));
    harness.assert_same("whole", "parts", 6);
    let config: Value = serde_json::from_slice(&harness.read("whole/config.json")).unwrap();
    assert_eq!((&config["model_type"], &config["num_heads"]), (&"mamba2".into(), &4.into()));

    let info = succeed(&mut harness.program(&["info", "whole"]));
    assert!(info.starts_with("Mamba-2, ") && info.contains("state 4, 4 heads of 8, "), "{info}");
    succeed(&mut harness.program(&["generate", "whole", "--prompt", "1 times", "-n", "4"]));
    let look = succeed(&mut harness.program(&["look", "whole", "--text", "1 times"]));
    assert_eq!(look, "look.svg: 8 tokens, 1 layer\n");
    let differs = ["text", "--from", "whole", "--arch", "mamba", "--out", "no"];
    let differs = fail(&mut harness.bare(&differs), 2);
    assert!(differs.contains("--arch is \"mamba\", but in whole it is \"mamba2\""), "{differs}");
    let original = ["convert", "whole", "original", "--layout", "original"];
    succeed(&mut harness.program(&original));
    succeed(&mut harness.program(&["convert", "original", "again"]));
    assert_eq!(harness.read("again/model.safetensors"), harness.read("whole/model.safetensors"));
}

/// Its files are those of the original code: Hugging Face's library has no such model.
#[test]
fn mamba3_is_trained_and_resumed() {
    let harness = Harness::new("mamba3");
    for (name, ranks, shown) in [("siso", "0", "SISO"), ("mimo", "2", "MIMO of rank 2")] {
        let [whole, parts, original, again] =
            ["whole", "parts", "original", "again"].map(|run| format!("{name}-{run}"));
        let arch = ["--arch", "mamba3", "--head-dim", "8", "--mimo-rank", ranks, "--steps", "6"];
        let text = succeed(&mut harness.train(&[&arch[..], &["--out", &whole]].concat()));
        assert!(text.contains("Mamba-3, width 16, layers 1, state 4, tied head, f32"), "{text}");
        let stop = ["--out", &*parts, "--stop-after", "3"];
        succeed(&mut harness.train(&[&arch[..], &stop].concat()));
        succeed(&mut harness.bare(&["--resume", "--out", &parts]));
        harness.assert_same(&whole, &parts, 6);
        let config = harness.read(&format!("{whole}/config.json"));
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(
            (&config["d_model"], &config["ssm_cfg"]["layer"]),
            (&16.into(), &"Mamba3".into())
        );

        let info = succeed(&mut harness.program(&["info", &whole]));
        let heads = format!("state 4, 4 heads of 8, {shown}\n");
        assert!(info.starts_with("Mamba-3, ") && info.contains(&heads), "{info}");
        succeed(&mut harness.program(&["generate", &whole, "--prompt", "1 times", "-n", "4"]));
        succeed(&mut harness.program(&["eval", &whole, "text"]));
        let convert = ["convert", &*whole, &original, "--layout", "original"];
        succeed(&mut harness.program(&convert));
        succeed(&mut harness.program(&["convert", &original, &again]));
        let [one, other] =
            [&whole, &again].map(|run| harness.read(&format!("{run}/model.safetensors")));
        assert!(one == other, "{name}");
    }
    let refused = fail(&mut harness.train(&["--arch", "mamba2", "--mimo-rank", "2"]), 2);
    assert!(refused.contains("--mimo-rank is of --arch mamba3"), "{refused}");
}

#[test]
fn hybrids_are_trained_resumed_and_adapted() {
    let harness = Harness::new("hybrid");
    let arch = ["--arch", "hybrid", "--head-dim", "8", "--layer-pattern", "MA", "--n-layer", "2"];
    let with = |more: &[&'static str]| [&arch[..], more].concat();
    let text = succeed(&mut harness.train(&with(&["--out", "whole", "--steps", "6"])));
    assert!(text.contains("Granite 4.0 H, width 16, layers 2, state 4, tied head, f32"), "{text}");
    let stop = with(&["--out", "parts", "--steps", "6", "--stop-after", "3"]);
    succeed(&mut harness.train(&stop));
    succeed(&mut harness.bare(&["--resume", "--out", "parts"]));
    harness.assert_same("whole", "parts", 6);
    let config: Value = serde_json::from_slice(&harness.read("whole/config.json")).unwrap();
    assert_eq!(config["layer_types"], serde_json::json!(["mamba", "attention"]));

    let info = succeed(&mut harness.program(&["info", "whole"]));
    let attention = "attention in layer 1: 2 heads of 8, 2 of keys and values, no positions";
    assert!(info.contains(attention) && info.contains("MLP of width 64"), "{info}");
    let look = succeed(&mut harness.program(&["look", "whole", "--text", "1 times"]));
    assert_eq!(look, "look.svg: 8 tokens, 2 layers\n");

    // A text in two parts, through a file with the state, is the text in one.
    let generate = |arguments: &[&str]| {
        let all = [&["generate", "whole", "--temperature", "0"], arguments].concat();
        succeed(&mut harness.program(&all))
    };
    let whole = generate(&["--prompt", "1 times", "-n", "12"]);
    let first = generate(&["--prompt", "1 times", "-n", "5", "--save-state", "state"]);
    let rest = generate(&["--load-state", "state", "-n", "7"]);
    let text = |output: &str| output.strip_suffix('\n').unwrap_or(output).to_owned();
    assert_eq!(text(&whole), text(&first) + &text(&rest));

    let lora = ["text", "--from", "whole", "--lora", "2", "--steps", "4", "--out", "adapter"];
    let small = ["--batch-size", "2", "--block-size", "16", "--device", "cpu"];
    let text = succeed(&mut harness.bare(&[&lora[..], &small].concat()));
    let adapted = "adapters of rank 2 on in_proj, q_proj, k_proj, v_proj, o_proj, input_linear";
    assert!(text.contains(adapted), "{text}");
    let original = ["convert", "whole", "original", "--layout", "original"];
    let original = fail(&mut harness.program(&original), 1);
    assert!(
        original.contains("Granite 4.0 H, which the original code has no layout"),
        "{original}"
    );

    let both = ["--arch", "hybrid", "--head-dim", "8", "--layer-pattern", "B", "--out", "both"];
    succeed(&mut harness.train(&[&both[..], &["--steps", "2"]].concat()));
    let info = succeed(&mut harness.program(&["info", "both"]));
    assert!(info.starts_with("Falcon-H1, ") && info.contains("attention in every layer"), "{info}");
}

#[test]
fn adapters_are_trained_resumed_and_merged() {
    let harness = Harness::new("lora");
    succeed(&mut harness.train(&["--out", "base", "--steps", "4"]));
    let tune = |out: &'static str, more: &[&'static str]| {
        let lora = ["text", "--from", "base", "--lora", "2", "--lora-dropout", "0.1"];
        let small = ["--batch-size", "2", "--block-size", "16", "--device", "cpu", "--lr", "0.01"];
        let rest = ["--sample-tokens", "0", "--steps", "6", "--out", out];
        harness.bare(&[&lora[..], &small, &rest, more].concat())
    };
    let text = succeed(&mut tune("whole", &[]));
    assert!(text.contains("adapters of rank 2 on in_proj, x_proj"), "{text}");
    succeed(&mut tune("parts", &["--stop-after", "3"]));
    succeed(&mut harness.bare(&["--resume", "--out", "parts"]));
    for file in ["adapter_model.safetensors", "checkpoint-6/trainer.json", "metrics.jsonl"] {
        let [one, other] = ["whole", "parts"].map(|run| harness.read(&format!("{run}/{file}")));
        assert!(one == other, "{file}");
    }
    assert!(!harness.path("whole/model.safetensors").exists());

    let generate = |arguments: &[&str]| {
        let ids = ["--prompt", "3 times", "-n", "8", "--temperature", "0"];
        succeed(&mut harness.program(&[&["generate"], arguments, &ids].concat()))
    };
    let adapted = generate(&["base", "--adapter", "whole"]);
    assert_eq!(generate(&["whole"]), adapted, "it names its model");
    let merge = ["convert", "base", "merged", "--adapter", "whole", "--merge"];
    succeed(&mut harness.program(&merge));
    assert_eq!(generate(&["merged"]), adapted);
    let loss = |arguments: &[&str]| -> f64 {
        let all = [&["eval"], arguments, &["text", "--json", "--window", "16"]].concat();
        let report: Value = serde_json::from_str(&succeed(&mut harness.program(&all))).unwrap();
        report["loss"].as_f64().unwrap()
    };
    let (before, after) = (loss(&["base"]), loss(&["base", "--adapter", "whole"]));
    assert!(after < before, "{after}, before {before}");
    assert!((loss(&["merged"]) - after).abs() < 1e-4);
    let info = succeed(&mut harness.program(&["info", "whole"]));
    assert!(info.contains("backbone.layers.*.mixer.x_proj  1 × rank 2"), "{info}");

    let refused = fail(&mut tune("no", &["--lora-targets", "dt_proj"]), 1);
    assert!(refused.contains("dt_proj cannot be adapted"), "{refused}");
    let refused = fail(&mut harness.program(&["convert", "base", "no", "--merge"]), 2);
    assert!(refused.contains("--merge needs --adapter"), "{refused}");
}

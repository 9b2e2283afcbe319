//! `taipan look`: the picture, its numbers, and what is refused.

use pollster::block_on;
use serde_json::Value;
use taipan::{DType, Device};
use taipan_lm::{AttentionConfig, Config, Family, LanguageModel, LayerKind, MlpConfig, Ssm};

use crate::harness::{Harness, fail, model, numbers, run, succeed};

impl Harness {
    fn picture(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn numbers_of(&self, arguments: &[&str]) -> Value {
        let text = succeed(&mut self.taipan(&[&["look", "model", "--json"], arguments].concat()));
        serde_json::from_str(&text).unwrap()
    }
}

/// The names of elements, with every start tag closed again: enough of XML for our own pages.
fn elements(svg: &str) -> Vec<&str> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for (i, tag) in svg.match_indices('<') {
        let tag = &svg[i + tag.len()..];
        let tag = &tag[..tag.find('>').expect("every tag ends")];
        let name = tag.split([' ', '/']).next().unwrap();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
            continue;
        }
        all.push(name);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

fn rows(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn a_picture_of_a_text() {
    let harness = Harness::new("look");
    let text = "a < b & \"c\" né\n\t\u{1b}[31m";
    let (stdout, stderr) = run(&mut harness.taipan(&["look", "model", "--text", text]));
    let count = 1 + text.len();
    assert_eq!(String::from_utf8(stdout).unwrap(), format!("look.svg: {count} tokens, 2 layers\n"));
    assert_eq!(stderr, "");
    let svg = harness.picture("look.svg");
    let count_of = |name| elements(&svg).into_iter().filter(|found| *found == name).count();
    assert_eq!((count_of("svg"), count_of("style"), count_of("desc")), (1, 1, 1));
    assert_eq!(count_of("title"), 1 + count, "one for the page, one for each token");
    assert!(svg.contains("<title id=\"title\">What model makes of a text</title>"), "{svg}");
    assert!(svg.contains("prefers-color-scheme: dark"));
    for shown in [">&lt;eos&gt;<", ">&lt;<", ">&amp;<", ">é<", ">·<", ">⏎<", ">⇥<", ">␛<"] {
        assert!(svg.contains(shown), "{shown}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let outside = svg.matches("http").count();
    assert_eq!(outside, 1, "nothing but the name of SVG's namespace");
    // The same text gives the same bytes, from a file as well.
    harness.write("text", format!("{text}\n"));
    succeed(&mut harness.taipan(&["look", "model", "--text-file", "text", "--out", "again.svg"]));
    assert_eq!(harness.picture("again.svg"), svg);
}

#[test]
fn its_numbers_are_those_of_the_library() {
    let harness = Harness::new("look_numbers");
    let found = harness.numbers_of(&["--text", "né", "--layer", "0"]);
    let ids = [0, 110, 195, 169];
    let tokens = found["tokens"].as_array().unwrap();
    assert_eq!(tokens.iter().map(|token| token["id"].as_u64().unwrap()).collect::<Vec<_>>(), ids);
    let texts: Vec<_> = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["<eos>", "n", "", "é"]);
    let expected = block_on(model(300, 1).inspect(&ids.map(|id| id as u32))).unwrap();
    assert_eq!(found["loss"].as_f64().unwrap(), expected.loss);
    for (found, expected) in found["layers"].as_array().unwrap().iter().zip(&expected.layers) {
        let expected = expected.scan.as_ref().unwrap();
        assert_eq!(rows(&found["mean_delta"]), expected.mean_delta);
        assert_eq!(rows(&found["state_norm"]), expected.state_norm);
        assert_eq!(rows(&found["gradient_reach"]), expected.gradient_reach);
        assert_eq!(numbers(&found["half_lives"]), expected.half_lives);
        assert!(found["attention_gradient_reach"].is_null());
    }
    assert!(found["attention"].is_null(), "that of attention, which Mamba has not");
    assert_eq!(rows(&found["half_life_edges"]), taipan_lm::HALF_LIFE_EDGES);
    let attention = &found["hidden_attention"];
    assert_eq!((attention["layer"].as_u64(), attention["first"].as_u64()), (Some(0), Some(0)));
    let values: Vec<f64> = attention["values"].as_array().unwrap().iter().flat_map(rows).collect();
    let scan = expected.layers[0].scan.as_ref().unwrap();
    assert_eq!(values, scan.hidden_attention().values);
    let by_ids = harness.numbers_of(&["--prompt-ids", "0,110,195,169", "--layer", "0"]);
    assert_eq!(by_ids, found);
    let last = harness.numbers_of(&["--text", "né"]);
    assert_eq!(last["hidden_attention"]["layer"].as_u64(), Some(1));
}

#[test]
fn layers_of_attention_have_their_own_views() {
    let harness = Harness::new("look_hybrid");
    let hybrid = Config {
        family: Family::Granite,
        ssm: Ssm::mamba2(8),
        layers: vec![LayerKind::Ssm, LayerKind::Attention],
        attention: Some(AttentionConfig::new(2, 1, 4)),
        mlp: Some(MlpConfig { size: 8, use_bias: false }),
        ..model(300, 1).config().clone()
    };
    let hybrid = LanguageModel::new(&hybrid, DType::F32, 1, &Device::Cpu).unwrap();
    harness.save("model", &hybrid);
    let expected = block_on(hybrid.inspect(&[0, 110, 195, 169])).unwrap();
    let found = harness.numbers_of(&["--text", "né"]);
    let layers = &found["layers"];
    for view in ["mean_delta", "half_lives", "state_norm", "gradient_reach"] {
        assert!(layers[0][view].is_array() && layers[1][view].is_null(), "{view}");
    }
    let attention = expected.layers[1].attention.as_ref().unwrap();
    assert!(layers[0]["attention_gradient_reach"].is_null());
    assert_eq!(rows(&layers[1]["attention_gradient_reach"]), attention.gradient_reach);
    let values = found["attention"]["values"].as_array().unwrap();
    let values: Vec<f64> = values.iter().flat_map(rows).collect();
    assert_eq!(values, attention.attention().values);
    assert!(found["hidden_attention"].is_null());
    let svg = harness.picture("look.svg");
    elements(&svg);
    for said in
        ["None: this layer is attention", "Attention in layer 1", "2 layers", "this has none"]
    {
        assert!(svg.contains(said), "{said}: {svg}");
    }
    let found = harness.numbers_of(&["--text", "né", "--layer", "0"]);
    assert!(found["attention"].is_null() && found["hidden_attention"].is_object());
    assert!(harness.picture("look.svg").contains("Hidden attention in layer 0"));
}

#[test]
fn long_texts_are_cut_and_it_says_so() {
    let harness = Harness::new("look_long");
    harness.write("long", "0123456789".repeat(100));
    let arguments = ["look", "model", "--text-file", "long"];
    let stdout = succeed(&mut harness.taipan(&arguments));
    assert_eq!(stdout, "look.svg: 512 tokens, the first of 1001, 2 layers\n");
    let svg = harness.picture("look.svg");
    assert!(svg.contains("The text has 1001 tokens; all of this is about the first 512."), "{svg}");
    assert!(svg.contains("The last 128 tokens."), "{svg}");
    let found = harness.numbers_of(&["--text-file", "long"]);
    assert_eq!(found["hidden_attention"]["first"].as_u64(), Some(512 - 128));
    // More lines than there is room for.
    harness.write("lines", "a\n".repeat(200));
    succeed(&mut harness.taipan(&["look", "model", "--text-file", "lines"]));
    let svg = harness.picture("look.svg");
    assert!(svg.contains("more tokens are not drawn here."), "{svg}");
}

#[test]
fn two_tokens_are_enough() {
    let harness = Harness::new("look_short");
    succeed(&mut harness.taipan(&["look", "model", "--text", "a"]));
    let svg = harness.picture("look.svg");
    elements(&svg);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn what_cannot_be_drawn_is_an_error() {
    let harness = Harness::new("look_errors");
    let look = |arguments: &[&str]| harness.taipan(&[&["look", "model"], arguments].concat());
    let cases: [(&[&str], i32, &str); 7] = [
        (&[], 2, "required arguments were not provided"),
        (&["--text", ""], 2, "the text is empty, expected at least one token"),
        (&["--prompt-ids", "5"], 2, "the text has 1 tokens, expected 2 or more"),
        (&["--prompt-ids", "5,300"], 1, "inspect: token 300, expected less than 300"),
        (&["--text", "a", "--layer", "2"], 2, "--layer is 2, expected less than 2"),
        (&["--text", "a", "--text-file", "b"], 2, "cannot be used with"),
        (&["--text-file", "nothing"], 1, "nothing: No such file or directory"),
    ];
    for (arguments, code, why) in cases {
        let stderr = fail(&mut look(arguments), code);
        assert!(stderr.contains(why), "{arguments:?}: {stderr}");
        assert!(!harness.path("look.svg").exists(), "{arguments:?}");
    }
    let stderr = fail(&mut look(&["--text", "a", "--out", "no/such/look.svg"]), 1);
    assert!(stderr.contains("no/such"), "{stderr}");
    // Tokens that have no text, and a model without a tokenizer.
    std::fs::remove_file(harness.path("model/tokenizer.json")).unwrap();
    let stderr = fail(&mut look(&["--text", "a"]), 1);
    assert!(stderr.contains("no tokenizer.json; without one, give token ids by --prompt-ids"));
    succeed(&mut look(&["--prompt-ids", "5,299"]));
    assert!(harness.picture("look.svg").contains(">[299]<"));
}

//! Models in Hugging Face's layout, there and back.

use std::fs;
use std::path::Path;

use crate::harness::{Run, files, steps};
use taipan::{DType, Device, Tensor};
use taipan_lm::safetensors::{Safetensors, Stored, write};
use taipan_lm::{
    Batch, Config, Conversion, LanguageModel, LayerKind, Layout, ModelFiles, Tokenizer,
};

type Tensors = Vec<(String, Tensor)>;

fn batch() -> Batch {
    let ids: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % 256).collect();
    let targets = ids.iter().map(|id| (id + 3) % 256).collect();
    let starts = (0..24).map(|i| u32::from(i % 12 == 0)).collect();
    Batch { batch_size: 2, block_size: 12, ids, targets, seq_start: starts }
}

fn loss(model: &LanguageModel) -> u64 {
    model.loss(&batch()).unwrap().item().unwrap().to_bits()
}

fn open(directory: &Path) -> Result<LanguageModel, String> {
    let model = LanguageModel::from_pretrained(directory, None, &Device::Cpu);
    model.map_err(|error| error.to_string().replace(&directory.display().to_string(), "DIR"))
}

/// A directory with a model, and the model.
fn saved(config: impl FnOnce(&mut Config)) -> (Run, LanguageModel) {
    let mut run = Run::new();
    config(&mut run.config);
    let model = run.model();
    model.save_pretrained(run.path(), &Tokenizer::bytes()).unwrap();
    (run, model)
}

/// Write the directory's tensors again, changed.
fn rewrite(directory: &Path, change: impl FnOnce(&mut Tensors)) {
    let path = directory.join("model.safetensors");
    let file = Safetensors::open(&path).unwrap();
    let tensor = |name: &str| (name.to_owned(), file.view(name).unwrap().tensor().unwrap());
    let mut tensors: Tensors = file.names().map(tensor).collect();
    change(&mut tensors);
    write_tensors(&path, &tensors);
}

fn write_tensors(path: &Path, tensors: &[(String, Tensor)]) {
    let stored = |(name, tensor): &(String, Tensor)| (name.clone(), tensor.shape().to_vec());
    let names: Vec<_> = tensors.iter().map(stored).collect();
    let stored: Vec<_> = names
        .into_iter()
        .zip(tensors)
        .map(|((name, shape), (_, tensor))| Stored { name, shape, tensors: vec![tensor] })
        .collect();
    let mut bytes = Vec::new();
    pollster::block_on(write(&stored, |part| {
        bytes.extend_from_slice(part);
        Ok::<_, taipan_lm::Error>(())
    }))
    .unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_model_comes_back_to_the_bit() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for tied in [true, false] {
            let mut run = Run { dtype, ..Run::new() };
            run.config = Config { tie_word_embeddings: tied, use_bias: true, ..run.config };
            let model = run.model();
            model.save_pretrained(run.path(), &Tokenizer::bytes()).unwrap();
            let again = open(run.path()).unwrap();
            assert_eq!((again.config(), again.dtype()), (&run.config, dtype));
            assert_eq!(loss(&again), loss(&model), "{dtype}");
            let before = files(run.path());
            again.save_pretrained(run.path(), &Tokenizer::bytes()).unwrap();
            assert!(files(run.path()) == before, "the same files again");
        }
    }
}

#[test]
fn files_have_the_names_and_shapes_of_hugging_face() {
    let (run, _) = saved(|config| config.tie_word_embeddings = false);
    let expected = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(run.names(), expected);
    let file = Safetensors::open(&run.path().join("model.safetensors")).unwrap();
    let layer = [
        ("norm.weight", vec![16]),
        ("mixer.in_proj.weight", vec![64, 16]),
        ("mixer.conv1d.weight", vec![32, 1, 4]),
        ("mixer.conv1d.bias", vec![32]),
        ("mixer.x_proj.weight", vec![9, 32]),
        ("mixer.dt_proj.weight", vec![32, 1]),
        ("mixer.dt_proj.bias", vec![32]),
        ("mixer.A_log", vec![32, 4]),
        ("mixer.D", vec![32]),
        ("mixer.out_proj.weight", vec![16, 32]),
    ];
    let mut expected = vec![
        ("backbone.embeddings.weight".to_owned(), vec![256, 16]),
        ("backbone.norm_f.weight".to_owned(), vec![16]),
        ("lm_head.weight".to_owned(), vec![256, 16]),
    ];
    for i in 0..2 {
        let named = |(name, shape): &(&str, Vec<usize>)| {
            (format!("backbone.layers.{i}.{name}"), shape.clone())
        };
        expected.extend(layer.iter().map(named));
    }
    expected.sort();
    let found: Vec<_> = file
        .names()
        .map(|name| (name.to_owned(), file.view(name).unwrap().shape.to_vec()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn original_names_and_a_tied_head_in_the_file_are_known() {
    let (run, model) = saved(|_| {});
    rewrite(run.path(), |tensors| {
        let at = tensors.iter().position(|(name, _)| name == "backbone.embeddings.weight").unwrap();
        tensors[at].0 = "backbone.embedding.weight".into();
        let head = tensors[at].1.clone();
        tensors.push(("lm_head.weight".into(), head));
    });
    assert_eq!(loss(&open(run.path()).unwrap()), loss(&model));
    rewrite(run.path(), |tensors| {
        let head = tensors.iter_mut().find(|(name, _)| name == "lm_head.weight").unwrap();
        head.1 = head.1.scale(2.0).unwrap();
    });
    assert_eq!(
        open(run.path()).unwrap_err(),
        "DIR: lm_head.weight is not backbone.embeddings.weight, to which it is tied"
    );
}

#[test]
fn other_tensors_are_refused_by_name() {
    let (run, _) = saved(|_| {});
    let changed = |change: &dyn Fn(&mut Tensors)| {
        run.model().save_pretrained(run.path(), &Tokenizer::bytes()).unwrap();
        rewrite(run.path(), change);
        open(run.path()).unwrap_err()
    };
    let find = |tensors: &mut Tensors, name: &str| {
        tensors.iter().position(|(n, _)| n.contains(name)).unwrap()
    };
    let missing = changed(&|tensors| {
        let at = find(tensors, "layers.1.mixer.A_log");
        tensors.remove(at);
    });
    assert_eq!(missing, "DIR: 1 tensor is missing: backbone.layers.1.mixer.A_log [32, 4]");
    let reshaped = changed(&|tensors| {
        let at = find(tensors, "layers.0.mixer.conv1d.weight");
        tensors[at].1 = tensors[at].1.reshape(&[32, 4]).unwrap();
    });
    assert_eq!(
        reshaped,
        "DIR: 1 tensor is of another shape or type: backbone.layers.0.mixer.conv1d.weight is \
         [32, 4] in f32, expected [32, 1, 4] in a float"
    );
    let integers = changed(&|tensors| {
        let at = find(tensors, "layers.0.mixer.D");
        tensors[at].1 = tensors[at].1.cast(DType::U32).unwrap();
    });
    assert_eq!(
        integers,
        "DIR: 1 tensor is of another shape or type: backbone.layers.0.mixer.D is [32] in u32, \
         expected [32] in a float"
    );
    let unknown = changed(&|tensors| {
        let extra = tensors[0].1.clone();
        tensors.push(("backbone.layers.2.mixer.D".into(), extra));
    });
    assert_eq!(
        unknown,
        "DIR: 1 tensor is not of the model: backbone.layers.2.mixer.D [256, 16] in f32"
    );
    let twice = changed(&|tensors| {
        let extra = tensors[0].1.clone();
        tensors.push(("backbone.embedding.weight".into(), extra));
    });
    assert_eq!(twice, "DIR: backbone.embeddings.weight is there twice");
}

#[test]
fn everything_that_is_wrong_is_listed_at_once() {
    let (run, _) = saved(|_| {});
    rewrite(run.path(), |tensors| {
        for (name, tensor) in tensors {
            match name.replace("layers.1", "layers.0").as_str() {
                "backbone.layers.0.mixer.D" => name.push_str("_old"),
                "backbone.norm_f.weight" => *tensor = tensor.reshape(&[4, 4]).unwrap(),
                _ => {}
            }
        }
    });
    assert_eq!(
        open(run.path()).unwrap_err(),
        "DIR: 2 tensors are missing: backbone.layers.0.mixer.D [32], backbone.layers.1.mixer.D \
         [32]; 2 tensors are not of the model: backbone.layers.0.mixer.D_old [32] in f32, \
         backbone.layers.1.mixer.D_old [32] in f32; 1 tensor is of another shape or type: \
         backbone.norm_f.weight is [4, 4] in f32, expected [16] in a float"
    );
    let config = Config { layers: vec![LayerKind::Ssm; 5], ..run.config.clone() };
    fs::write(run.path().join("config.json"), config.to_json(DType::F32, None)).unwrap();
    let error = open(run.path()).unwrap_err();
    assert!(error.starts_with("DIR: 32 tensors are missing: backbone.layers.0.mixer.D [32], "));
    let listed = "backbone.layers.2.mixer.dt_proj.weight [32, 1], and 24 more; 2 tensors";
    assert!(error.contains(listed), "{error}");
}

#[test]
fn a_model_in_several_files_is_known() {
    let (run, model) = saved(|_| {});
    let path = run.path().join("model.safetensors");
    let file = Safetensors::open(&path).unwrap();
    let tensors: Vec<_> = file
        .names()
        .map(|name| (name.to_owned(), file.view(name).unwrap().tensor().unwrap()))
        .collect();
    let (first, second) = tensors.split_at(7);
    let parts = [("model-1.safetensors", first), ("model-2.safetensors", second)];
    let mut weight_map = serde_json::Map::new();
    for (name, tensors) in parts {
        write_tensors(&run.path().join(name), tensors);
        weight_map.extend(tensors.iter().map(|(tensor, _)| (tensor.clone(), name.into())));
    }
    fs::remove_file(&path).unwrap();
    let index = run.path().join("model.safetensors.index.json");
    let write_index = |map: &serde_json::Map<String, serde_json::Value>| {
        fs::write(&index, serde_json::json!({ "metadata": {}, "weight_map": map }).to_string())
            .unwrap();
    };
    write_index(&weight_map);
    assert_eq!(loss(&open(run.path()).unwrap()), loss(&model));

    write_index(&serde_json::Map::new());
    let error = open(run.path()).unwrap_err();
    assert_eq!(error, "DIR/model.safetensors.index.json: no tensor in it");
    weight_map["backbone.embeddings.weight"] = "model-2.safetensors".into();
    write_index(&weight_map);
    let error = open(run.path()).unwrap_err();
    assert_eq!(error, "DIR/model-2.safetensors: backbone.embeddings.weight is missing");
    weight_map["backbone.embeddings.weight"] = "../model-1.safetensors".into();
    write_index(&weight_map);
    let error = open(run.path()).unwrap_err();
    assert!(
        error.ends_with("\"../model-1.safetensors\" found, expected a file beside it"),
        "{error}"
    );
}

#[test]
fn a_model_is_loaded_in_the_type_asked_for() {
    let (run, _) = saved(|_| {});
    let half = LanguageModel::from_pretrained(run.path(), Some(DType::BF16), &Device::Cpu).unwrap();
    let dtypes: Vec<_> = half.parameters().iter().map(|p| (p.name.clone(), p.dtype())).collect();
    for (name, dtype) in dtypes {
        let wide =
            name.ends_with("A_log") || name.ends_with(".D") || name.ends_with("dt_proj.bias");
        assert_eq!(dtype, if wide { DType::F32 } else { DType::BF16 }, "{name}");
    }
}

#[test]
fn a_directory_without_a_model_is_refused() {
    let run = Run::new();
    assert!(open(run.path()).unwrap_err().starts_with("DIR/config.json: "));
    fs::write(run.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    assert!(open(run.path()).unwrap_err().starts_with("DIR/config.json: config: model_type is"));
    fs::write(run.path().join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    assert_eq!(
        open(run.path()).unwrap_err(),
        "DIR: none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, \
         pytorch_model.bin.index.json is in it"
    );
}

#[test]
fn a_file_is_opened_with_the_config_beside_it() {
    let (run, model) = saved(|_| {});
    let file = run.path().join("model.safetensors");
    let again = LanguageModel::from_pretrained(&file, None, &Device::Cpu).unwrap();
    assert_eq!(loss(&again), loss(&model));
    fs::rename(&file, run.path().join("weights.safetensors")).unwrap();
    let renamed = run.path().join("weights.safetensors");
    let again = LanguageModel::from_pretrained(renamed, None, &Device::Cpu).unwrap();
    assert_eq!(loss(&again), loss(&model));
    assert!(open(run.path()).is_err());
}

#[test]
fn a_run_that_is_not_finished_has_its_last_checkpoint() {
    let run = Run::new();
    let mut trainer = run.one_step(3);
    steps(&mut trainer, 1);
    trainer.save_blocking(run.path(), 3).unwrap();
    let files = ModelFiles::open(run.path()).unwrap();
    assert_eq!(files.directory(), run.checkpoint(2));
    trainer.export_blocking(run.path()).unwrap();
    assert_eq!(ModelFiles::open(run.path()).unwrap().directory(), run.path());
    // Of several files with tensors, that of safetensors.
    fs::write(run.path().join("pytorch_model.bin"), "no model").unwrap();
    assert!(ModelFiles::open(run.path()).is_ok());
    let model = files.load(DType::F32, &Device::Cpu).unwrap();
    assert_eq!(loss(&model), loss(trainer.model()));
}

/// A conversion of a directory into a new one, which is returned.
fn convert(from: &Path, to: &str, conversion: &Conversion) -> std::path::PathBuf {
    let out = from.join(to);
    ModelFiles::open(from).unwrap().convert(&out, conversion).unwrap();
    out
}

#[test]
fn conversions_lead_back_to_the_same_bytes() {
    for tied in [true, false] {
        let (run, model) = saved(|config| {
            config.tie_word_embeddings = tied;
            config.intermediate_size = Some(37);
            config.use_bias = true;
            config.init.time_step_floor = 0.005;
        });
        let before = files(run.path());
        let sharded = Conversion { max_shard_size: Some(5000), ..Conversion::default() };
        let sharded = convert(run.path(), "sharded", &sharded);
        let names: Vec<_> = files(&sharded).into_keys().collect();
        assert!(names.contains(&"model.safetensors.index.json".into()), "{names:?}");
        let shards = names.iter().filter(|name| name.starts_with("model-")).count();
        let name = |i: usize| format!("model-{i:05}-of-{shards:05}.safetensors");
        assert!(shards > 3 && (1..=shards).all(|i| names.contains(&name(i))), "{names:?}");
        let index = fs::read_to_string(sharded.join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_str(&index).unwrap();
        let bytes: usize = model.parameters().iter().map(|parameter| 4 * parameter.len()).sum();
        assert_eq!(index["metadata"]["total_size"], bytes);
        let original = Conversion { layout: Layout::Original, ..Conversion::default() };
        let original = convert(&sharded, "original", &original);
        let file = Safetensors::open(&original.join("model.safetensors")).unwrap();
        assert!(
            file.view("backbone.embedding.weight").is_ok() && file.view("lm_head.weight").is_ok()
        );
        assert_eq!(ModelFiles::open(&original).unwrap().layout(), Layout::Original);
        assert_eq!(loss(&open(&original).unwrap()), loss(&model));
        let again = convert(&original, "again", &Conversion::default());
        assert!(files(&again) == before, "tied: {tied}");
    }
}

#[test]
fn a_conversion_is_what_the_model_is_in_that_dtype() {
    let (run, _) = saved(|config| config.tie_word_embeddings = false);
    for (name, dtype) in [("f16", DType::F16), ("bf16", DType::BF16), ("f64", DType::F64)] {
        let conversion = Conversion { dtype: Some(dtype), ..Conversion::default() };
        let out = convert(run.path(), name, &conversion);
        let model = LanguageModel::from_pretrained(run.path(), Some(dtype), &Device::Cpu).unwrap();
        let expected = run.path().join(format!("{name}-saved"));
        model.save_pretrained(&expected, &Tokenizer::bytes()).unwrap();
        assert!(files(&out) == files(&expected), "{dtype}");
    }
    rewrite(run.path(), |tensors| {
        let head = tensors.iter_mut().find(|(name, _)| name == "lm_head.weight").unwrap();
        head.1 = head.1.scale(1e7).unwrap();
    });
    let conversion = Conversion { dtype: Some(DType::F16), ..Conversion::default() };
    let files = ModelFiles::open(run.path()).unwrap();
    let ids = Conversion { dtype: Some(DType::U32), ..Conversion::default() };
    let error = files.convert(run.path().join("ids"), &ids).unwrap_err().to_string();
    assert_eq!(error, "convert: the dtype is u32, expected a float");
    let out = run.path().join("too large");
    let error = files.convert(&out, &conversion).unwrap_err();
    assert_eq!(
        error.to_string(),
        "lm_head.weight: a value is beyond the range of f16, or not finite"
    );
    assert!(!out.exists() && !run.names().iter().any(|name| name.contains("too large")));
}

#[test]
fn a_conversion_replaces_nothing() {
    let (run, _) = saved(|_| {});
    let model = ModelFiles::open(run.path()).unwrap();
    let convert = |out: &Path| {
        let result = model.convert(out, &Conversion::default());
        result.map_err(|error| error.to_string().replace(&run.path().display().to_string(), "DIR"))
    };
    let before = files(run.path());
    assert_eq!(
        convert(run.path()).unwrap_err(),
        "DIR: not empty, expected a new or empty directory"
    );
    assert!(convert(&run.path().join("config.json")).unwrap_err().starts_with("DIR/config.json: "));
    assert!(files(run.path()) == before);
    let out = run.path().join("a/b");
    fs::create_dir_all(&out).unwrap();
    convert(&out).unwrap();
    assert!(files(&out) == before);
    convert(&run.path().join("c/d")).unwrap();
}

#[test]
fn a_conversion_keeps_the_tokens_that_end_a_text() {
    let (run, _) = saved(|_| {});
    let path = run.path().join("config.json");
    let json = fs::read_to_string(&path).unwrap();
    fs::write(&path, json.replace("\"eos_token_id\": 0", "\"eos_token_id\": [7, 9]")).unwrap();
    fs::remove_file(run.path().join("tokenizer.json")).unwrap();
    let out = convert(run.path(), "out", &Conversion::default());
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(json["eos_token_id"], serde_json::json!([7, 9]));
    assert_eq!(json["bos_token_id"], 0);
    assert!(!out.join("tokenizer.json").exists() && out.join("tokenizer_config.json").exists());
}

#[test]
fn values_that_are_not_finite_are_found() {
    let (run, _) = saved(|_| {});
    assert!(ModelFiles::open(run.path()).unwrap().verify().is_ok());
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        rewrite(run.path(), |tensors| {
            let norm = tensors.iter_mut().find(|(name, _)| name.ends_with("norm_f.weight"));
            let values = [[f64::NAN, f64::NEG_INFINITY, 65504.0, 1e-7].as_slice(), &[0.0; 12]];
            let values = Tensor::new(&values.concat(), &[16], &Device::Cpu).unwrap();
            norm.unwrap().1 = values.cast(dtype).unwrap();
        });
        let error = ModelFiles::open(run.path()).unwrap().verify().unwrap_err().to_string();
        assert!(error.ends_with("1 tensor is not finite: backbone.norm_f.weight (2)"), "{error}");
    }
}

//! Models in Hugging Face's layout, there and back.

use std::fs;
use std::path::Path;

use crate::harness::{Run, files};
use taipan::{DType, Device, Tensor};
use taipan_lm::safetensors::{Safetensors, Stored, write};
use taipan_lm::{Batch, Config, Mamba, Tokenizer};

type Tensors = Vec<(String, Tensor)>;

fn batch() -> Batch {
    let ids: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % 256).collect();
    let targets = ids.iter().map(|id| (id + 3) % 256).collect();
    let starts = (0..24).map(|i| u32::from(i % 12 == 0)).collect();
    Batch { batch_size: 2, block_size: 12, ids, targets, seq_start: starts }
}

fn loss(model: &Mamba) -> u64 {
    model.loss(&batch()).unwrap().item().unwrap().to_bits()
}

fn open(directory: &Path) -> Result<Mamba, String> {
    let model = Mamba::from_pretrained(directory, None, &Device::Cpu);
    model.map_err(|error| error.to_string().replace(&directory.display().to_string(), "DIR"))
}

/// A directory with a model, and the model.
fn saved(config: impl FnOnce(&mut Config)) -> (Run, Mamba) {
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
        Ok(())
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
    assert_eq!(missing, "DIR: backbone.layers.1.mixer.A_log is missing");
    let reshaped = changed(&|tensors| {
        let at = find(tensors, "layers.0.mixer.conv1d.weight");
        tensors[at].1 = tensors[at].1.reshape(&[32, 4]).unwrap();
    });
    assert_eq!(
        reshaped,
        "DIR: backbone.layers.0.mixer.conv1d.weight is [32, 4] in f32, expected [32, 1, 4] \
         in a float"
    );
    let integers = changed(&|tensors| {
        let at = find(tensors, "layers.0.mixer.D");
        tensors[at].1 = tensors[at].1.cast(DType::U32).unwrap();
    });
    assert_eq!(integers, "DIR: backbone.layers.0.mixer.D is [32] in u32, expected [32] in a float");
    let unknown = changed(&|tensors| {
        let extra = tensors[0].1.clone();
        tensors.push(("backbone.layers.2.mixer.D".into(), extra));
    });
    assert_eq!(unknown, "DIR: backbone.layers.2.mixer.D is not a tensor of the model");
    let twice = changed(&|tensors| {
        let extra = tensors[0].1.clone();
        tensors.push(("backbone.embedding.weight".into(), extra));
    });
    assert_eq!(twice, "DIR: backbone.embeddings.weight is there twice");
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
    let half = Mamba::from_pretrained(run.path(), Some(DType::BF16), &Device::Cpu).unwrap();
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
    assert!(open(run.path()).unwrap_err().starts_with("DIR/model.safetensors: "));
}

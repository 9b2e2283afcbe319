//! Named parameters, blocks, and their files.

use std::path::PathBuf;

use taipan::check::{array, devices};
use taipan::nn::{
    AttentionBlock, AttentionOptions, Dropout, Embedding, GatedMlp, GatedMlpOptions, Initializer,
    LayerNorm, Linear, MambaBlock, MambaOptions, Matrix, MlpLayout, Module, RmsNorm, RowBlock,
};
use taipan::{
    Activation, DType, Device, Result, Tensor, concat, layer_norm, no_grad, recompute, safetensors,
};

struct Model {
    table: Embedding,
    blocks: Vec<Block>,
    scale: Option<Tensor>,
    width: usize,
}

struct Block {
    norm: RmsNorm,
    mixer: Box<MambaBlock>,
}

taipan::module!(Block { norm, mixer });
taipan::module!(Model { table, blocks as "layers", scale; width });

impl Model {
    fn new(seed: u64, dtype: DType, device: &Device) -> Result<Model> {
        let (init, width) = (&mut Initializer::new(seed, dtype, device), 16);
        let options = MambaOptions { use_bias: true, ..MambaOptions::new(width) };
        let block = |init: &mut Initializer| -> Result<Block> {
            let mixer = Box::new(MambaBlock::new(&options, init)?);
            Ok(Block { norm: RmsNorm::new(width, init)?, mixer })
        };
        Ok(Model {
            table: Embedding::new(10, width, init)?,
            blocks: vec![block(init)?, block(init)?],
            scale: None,
            width,
        })
    }

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let mut x = self.table.forward(ids)?;
        for block in &self.blocks {
            x = x.add(&block.mixer.forward(&block.norm.forward(&x)?)?)?;
        }
        assert_eq!(x.shape()[2], self.width);
        Ok(x)
    }
}

/// A path that a test has for itself.
fn path(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("taipan-nn-{test}-{}", std::process::id()))
}

#[test]
fn names_follow_the_fields() -> Result<()> {
    let mut model = Model::new(1, DType::F32, &Device::Cpu)?;
    let names: Vec<String> = model.parameters().into_iter().map(|(name, _)| name).collect();
    let block = [
        "norm.weight",
        "mixer.in_proj.weight[x]",
        "mixer.in_proj.weight[z]",
        "mixer.in_proj.bias[x]",
        "mixer.in_proj.bias[z]",
        "mixer.conv1d.weight",
        "mixer.conv1d.bias",
        "mixer.x_proj.weight",
        "mixer.dt_proj.weight",
        "mixer.dt_proj.bias",
        "mixer.A_log",
        "mixer.D",
        "mixer.out_proj.weight",
        "mixer.out_proj.bias",
    ];
    let layers = (0..2).flat_map(|i| block.map(|name| format!("layers.{i}.{name}")));
    assert_eq!(names, ["table.weight".into()].into_iter().chain(layers).collect::<Vec<_>>());
    let changed: Vec<String> = model.parameters_mut().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, changed, "the same order");
    model.scale = Some(Tensor::ones(&[16], DType::F32, &Device::Cpu)?);
    assert_eq!(model.parameters().last().unwrap().0, "scale");
    Ok(())
}

#[test]
fn what_is_frozen_has_no_gradient() -> Result<()> {
    for device in devices() {
        let mut model = Model::new(1, DType::F32, &device)?;
        assert_eq!(model.freeze("*in_proj.weight")?, 4, "both slices of both layers");
        assert_eq!(model.freeze("layers.0.*")?, 14);
        let ids = Tensor::new(&[1u32, 2, 3], &[1, 3], &device)?;
        let grads = model.forward(&ids)?.sum()?.backward()?;
        for (name, parameter) in model.parameters() {
            let frozen = name.starts_with("layers.0.") || name.contains("in_proj.weight");
            assert_eq!(grads.of(parameter).is_err(), frozen, "{name}");
            assert_eq!(grads.named(&model, &name).is_err(), frozen, "{name}");
        }
        assert_eq!(model.unfreeze("*")?, 29);
        let grads = model.forward(&ids)?.sum()?.backward()?;
        assert!(model.parameters().iter().all(|(_, parameter)| grads.of(parameter).is_ok()));
    }
    let mut model = Model::new(1, DType::F32, &Device::Cpu)?;
    assert_eq!(
        model.freeze("*.in_proj").unwrap_err().to_string(),
        "freeze: \"*.in_proj\" matches no parameter, expected names like table.weight or \
         layers.1.mixer.out_proj.bias"
    );
    Ok(())
}

#[test]
fn gradients_are_mapped_and_found_by_name() -> Result<()> {
    let mut init = Initializer::new(1, DType::F64, &Device::Cpu);
    let layer = Linear::new(2, 3, &mut init)?;
    let x = Tensor::ones(&[4, 2], DType::F64, &Device::Cpu)?;
    let grads = || layer.forward(&x)?.sum()?.backward();
    let halves = grads()?.map(|grad| grad.scale(0.5))?;
    assert_eq!(array(halves.named(&layer, "weight")?).data, [2.0; 6]);
    assert_eq!(
        grads()?.named(&layer, "weights").unwrap_err().to_string(),
        "grads: \"weights\" matches no parameter, expected names like weight or bias"
    );
    let refused = grads()?.map(|grad| grad.sum()).unwrap_err().to_string();
    assert!(refused.starts_with("grads: a gradient is [], expected [3"), "{refused}");
    Ok(())
}

#[test]
fn rows_in_blocks_are_the_same_layer() -> Result<()> {
    for device in devices() {
        let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &device);
        let (top, low, x) = (random(&[3, 5], 1)?, random(&[2, 5], 2)?, random(&[2, 4, 5], 3)?);
        let (a, b) = (random(&[3], 4)?, random(&[2], 5)?);
        let whole = Linear::from_tensors(concat(&[&top, &low], 0)?, Some(concat(&[&a, &b], 0)?))?;
        let block = |label, weight: &Tensor, bias: &Tensor| RowBlock {
            label,
            weight: Matrix::Float(weight.clone()),
            bias: Some(bias.clone()),
        };
        let blocks = Linear::from_blocks(vec![block("x", &top, &a), block("z", &low, &b)])?;
        let found = array(&blocks.activated(&x, Activation::Silu)?);
        let expected = array(&whole.activated(&x, Activation::Silu)?);
        assert_eq!(found.shape, expected.shape);
        for (found, expected) in found.data.iter().zip(&expected.data) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
        let shapes =
            blocks.forward_blocks(&x)?.iter().map(|y| y.shape().to_vec()).collect::<Vec<_>>();
        assert_eq!(shapes, [[2, 4, 3], [2, 4, 2]]);
    }
    Ok(())
}

#[test]
fn layers_of_wrong_tensors_are_refused() -> Result<()> {
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu);
    let refused = |linear: Result<Linear>| linear.unwrap_err().to_string();
    assert_eq!(
        refused(Linear::from_tensors(ones(&[3])?, None)),
        "linear layer: a weight is [3], expected [n, k]"
    );
    assert_eq!(
        refused(Linear::from_tensors(ones(&[3, 2])?, Some(ones(&[2])?))),
        "linear layer: bias is [2], expected [3]"
    );
    let block = |label, shape: &[usize]| -> Result<RowBlock> {
        Ok(RowBlock { label, weight: Matrix::Float(ones(shape)?), bias: None })
    };
    assert_eq!(
        refused(Linear::from_blocks(vec![block("x", &[3, 2])?, block("x", &[3, 2])?])),
        "linear layer: a block of rows is \"x\", expected a label of its own"
    );
    assert_eq!(
        refused(Linear::from_blocks(vec![block("x", &[3, 2])?, block("z", &[3, 4])?])),
        "linear layer: a weight is [3, 4], expected [n, 2]"
    );
    assert_eq!(
        refused(Linear::from_blocks(Vec::new())),
        "linear layer: no blocks of rows, expected one or more"
    );
    Ok(())
}

#[test]
fn a_layer_norm_has_weight_and_bias() -> Result<()> {
    for device in devices() {
        let init = &mut Initializer::new(1, DType::F32, &device);
        let mut norm = LayerNorm::new(5, init)?;
        let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &device);
        let x = random(&[2, 3, 5], 1)?;
        let (weight, bias) = (random(&[5], 2)?, random(&[5], 3)?);
        norm.weight = weight.clone().tracked();
        norm.bias = Some(bias.clone().tracked());
        norm.eps = 0.1;
        let y = norm.forward(&x)?;
        assert_eq!(array(&y).data, array(&layer_norm(&x, &weight, Some(&bias), 0.1)?).data);
        let grads = y.sum()?.backward()?;
        assert_eq!(array(grads.named(&norm, "bias")?).data, [6.0; 5]);
        assert!(grads.named(&norm, "weight").is_ok());
        let names = |norm: &LayerNorm| norm.parameters().into_iter().map(|p| p.0).collect();
        let all: [Vec<String>; 2] = [names(&norm), names(&LayerNorm::without_bias(5, init)?)];
        assert_eq!(all, [vec!["weight", "bias"], vec!["weight"]]);
    }
    Ok(())
}

#[test]
fn dropout_follows_from_layer_and_step() -> Result<()> {
    let mut masks = Vec::new();
    for device in devices() {
        let init = &mut Initializer::new(1, DType::F32, &device);
        let layers = [Dropout::new(0.25, init)?, Dropout::new(0.25, init)?];
        assert_eq!(layers.num_parameters(), 0);
        let x = Tensor::ones(&[4096], DType::F32, &device)?;
        let mask = |layer: usize, step| Ok(array(&layers[layer].forward(&x, step)?).data);
        let all: Vec<Vec<f64>> = [(0, 0), (0, 1), (0, 1 << 32), (1, 0)]
            .into_iter()
            .map(|(layer, step)| mask(layer, step))
            .collect::<Result<_>>()?;
        for (i, one) in all.iter().enumerate() {
            let dropped = one.iter().filter(|y| **y == 0.0).count() as f64 / 4096.0;
            assert!((dropped - 0.25).abs() < 0.03, "{dropped}");
            for other in &all[..i] {
                // Both drop an element with probability 1/16 if neither knows of the other.
                let both = one.iter().zip(other).filter(|(a, b)| **a == 0.0 && **b == 0.0).count();
                assert!((both as f64 / 4096.0 - 0.0625).abs() < 0.02, "{both}");
            }
        }
        assert_eq!(mask(0, 1)?, all[1]);
        let evaluated = no_grad(|| layers[0].forward(&x, 0))?;
        assert_eq!(array(&evaluated).data, [1.0; 4096]);
        masks.push(all);
    }
    assert!(masks.iter().all(|all| *all == masks[0]), "the same on every device");
    let refused = Dropout::new(1.0, &mut Initializer::new(1, DType::F32, &Device::Cpu));
    assert_eq!(refused.unwrap_err().to_string(), "dropout: p is 1, expected 0 ≤ p < 1");
    Ok(())
}

/// The first pass of `recompute` adds nothing to the graph, but is training all the same.
#[test]
fn dropout_is_the_same_when_recomputed() -> Result<()> {
    let dropout = Dropout::new(0.5, &mut Initializer::new(1, DType::F64, &Device::Cpu))?;
    let x = Tensor::randn(&[100], 1, DType::F64, &Device::Cpu)?.tracked();
    let block = move |x: &Tensor| dropout.forward(&x.exp()?, 7)?.mul(x);
    let direct = block(&x)?;
    let again = block.clone();
    let nested = move |x: &[Tensor]| {
        let again = again.clone();
        recompute(&[&x[0]], move |x| Ok(vec![again(&x[0])?]))
    };
    let recomputed = recompute(&[&x], nested.clone())?.remove(0);
    assert_eq!(array(&recomputed).data, array(&direct).data);
    let grad = |y: &Tensor| Ok(array(y.sum()?.backward()?.of(&x)?).data);
    assert_eq!(grad(&recomputed)?, grad(&direct)?);
    let evaluated = no_grad(|| recompute(&[&x], nested))?.remove(0);
    assert_eq!(array(&evaluated).data, array(&no_grad(|| block(&x))?).data);
    assert_ne!(array(&evaluated).data, array(&direct).data);
    Ok(())
}

#[test]
fn models_come_back_from_files() -> Result<()> {
    let path = path("models");
    for device in devices() {
        for dtype in [DType::F32, DType::F16].into_iter().filter(|d| device.supports(*d)) {
            let model = Model::new(1, dtype, &device)?;
            safetensors::save(&path, &model.parameters())?;
            let stored = safetensors::load(&path, &Device::Cpu)?;
            assert_eq!(stored.len(), 1 + 2 * 12, "halves of in_proj are one tensor");
            let in_proj = stored.iter().find(|(n, _)| n == "layers.0.mixer.in_proj.weight");
            assert_eq!(in_proj.unwrap().1.shape(), [64, 16]);
            let mut other = Model::new(2, dtype, &device)?;
            other.freeze("table.weight")?;
            safetensors::load_into(&path, &mut other)?;
            assert!(!other.table.parameters()[0].1.is_tracked(), "still frozen");
            let ids = Tensor::new(&[1u32, 2, 3], &[1, 3], &device)?;
            let [a, b] = [&model, &other].map(|m| no_grad(|| array(&m.forward(&ids).unwrap())));
            assert_eq!(a.data, b.data);
        }
    }
    std::fs::remove_file(&path).unwrap();
    Ok(())
}

#[test]
fn files_of_other_models_change_nothing() -> Result<()> {
    let path = path("others");
    let init = &mut Initializer::new(1, DType::F32, &Device::Cpu);
    let mut layer = Linear::new(2, 3, init)?;
    let before = array(layer.parameters()[0].1).data;
    let mut refused = |other: &dyn Module| -> Result<String> {
        safetensors::save(&path, &other.parameters())?;
        let error = safetensors::load_into(&path, &mut layer).unwrap_err().to_string();
        assert_eq!(array(layer.parameters()[0].1).data, before);
        Ok(error.replace(path.to_str().unwrap(), "F"))
    };
    assert_eq!(refused(&Linear::without_bias(2, 3, init)?)?, "F: bias is missing");
    assert_eq!(refused(&Linear::new(3, 3, init)?)?, "F: weight is [3, 3], expected [3, 2]");
    assert_eq!(refused(&[Linear::new(2, 3, init)?])?, "F: weight is missing");
    let extra = Tensor::ones(&[1], DType::F32, &Device::Cpu)?;
    let whole = Linear::new(2, 3, init)?;
    let all = [whole.parameters(), vec![("extra".into(), &extra)]].concat();
    safetensors::save(&path, &all)?;
    let error = safetensors::load_into(&path, &mut layer).unwrap_err().to_string();
    assert!(error.ends_with("extra is no parameter of the module"), "{error}");
    let twice = [("a".to_owned(), &Tensor::ones(&[1], DType::F32, &Device::Cpu)?)];
    let twice = [twice.clone(), twice].concat();
    let error = safetensors::save(&path, &twice).unwrap_err().to_string();
    assert!(error.ends_with("two tensors are a, expected a name for each"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let missing = safetensors::load(&path, &Device::Cpu).unwrap_err().to_string();
    assert!(missing.contains("No such file"), "{missing}");
    let nowhere = safetensors::save(path.join("x"), &layer.parameters()).unwrap_err().to_string();
    assert!(nowhere.contains("No such file"), "{nowhere}");
    Ok(())
}

/// In several calls as in one, through a cache that is forked on the way.
#[test]
fn attention_continues_from_its_cache() -> Result<()> {
    for device in devices() {
        let mut init = Initializer::new(3, DType::F32, &device);
        let options =
            AttentionOptions { key_heads: 2, rope_base: Some(1e3), ..AttentionOptions::new(24, 6) };
        let block = AttentionBlock::new(&options, &mut init)?;
        let x = Tensor::randn(&[2, 600, 24], 5, DType::F32, &device)?;
        no_grad(|| {
            let whole = block.forward(&x)?;
            let part = |range: std::ops::Range<usize>, cache| {
                block.forward_from(&x.slice(1, range)?, None, cache, &mut |_, o| Ok(o))
            };
            let (_, cache) = part(0..250, None)?;
            let (first, grown) = part(250..420, Some(cache.clone()))?;
            let (second, grown) = part(420..600, Some(grown))?;
            assert_eq!((cache.steps(), grown.steps(), grown.batch_size()), (250, 600, 2));
            // The clone is as it was.
            let (again, _) = part(250..420, Some(cache))?;
            let rest = [(&first, 250..420), (&again, 250..420), (&second, 420..600)];
            for (found, range) in rest {
                let error = found.sub(&whole.slice(1, range)?)?.abs()?.max()?.item()?;
                assert!(error < 1e-6, "{error}");
            }
            let [keys, values] = grown.tensors()?;
            assert_eq!((keys.shape(), values.shape()), (&[2, 600, 2, 4][..], &[2, 600, 2, 4][..]));
            Ok(())
        })?;
    }
    Ok(())
}

/// The same matrices in another layout are the same MLP.
#[test]
fn layouts_of_an_mlp_differ_in_names_alone() -> Result<()> {
    let random = |rows: usize, columns: usize, seed| {
        Tensor::randn(&[rows, columns], seed, DType::F64, &Device::Cpu)
    };
    let [gate, up, down] = [random(6, 4, 1)?, random(6, 4, 2)?, random(4, 6, 3)?];
    let x = random(5, 4, 4)?;
    let linear = |x: &Tensor, w: &Tensor| x.matmul(&w.transpose(0, 1)?);
    let gated = linear(&x, &up)?.mul(&linear(&x, &gate)?.scale(0.5)?.silu()?)?;
    let expected = array(&linear(&gated, &down)?);
    for (layout, first, last) in [
        (MlpLayout::Separate, "gate_proj.weight", "down_proj.weight"),
        (MlpLayout::GateFirst, "input_linear.weight[gate]", "output_linear.weight"),
        (MlpLayout::GateLast, "fc1.weight[up]", "fc2.weight"),
    ] {
        let options =
            GatedMlpOptions { layout, gate_multiplier: 0.5, ..GatedMlpOptions::new(4, 6) };
        let mlp = GatedMlp::build::<taipan::Error>(&options, &mut |parameter| {
            let upper = parameter.rows.as_ref().is_none_or(|rows| rows.start == 0);
            Ok(match (parameter.stored, upper) {
                ("gate_proj.weight", _) | ("input_linear.weight", true) | ("fc1.weight", false) => {
                    gate.clone()
                }
                ("down_proj.weight" | "output_linear.weight" | "fc2.weight", _) => down.clone(),
                _ => up.clone(),
            })
        })?;
        let names: Vec<String> = mlp.parameters().into_iter().map(|(name, _)| name).collect();
        assert_eq!((&*names[0], &*names[2]), (first, last));
        let found = array(&mlp.forward(&x)?);
        for (found, expected) in found.data.iter().zip(&expected.data) {
            assert!((found - expected).abs() < 1e-12, "{layout:?}: {found}, expected {expected}");
        }
    }
    Ok(())
}

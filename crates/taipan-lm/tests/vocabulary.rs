//! A table of tokens that is larger than a GPU's binding.

use taipan::gpu::{Capabilities, Gpu, adapters};
use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{DType, Device, Tensor, check};
use taipan_lm::{Batch, Config, LanguageModel, LayerKind};

/// The GPU that is tested, with the limits of every browser: 8 buffers, and 128 MiB of each. None
/// if it is left out.
fn browser_gpu() -> Option<Device> {
    let tested = check::devices().into_iter().find_map(|device| match device {
        Device::Gpu(gpu) => Some(gpu),
        _ => None,
    })?;
    let adapters = pollster::block_on(adapters());
    let adapter = adapters.iter().find(|adapter| adapter.get_info().name == tested.info().name);
    let adapter = adapter.unwrap_or_else(|| panic!("{} is gone", tested.name()));
    let gpu = pollster::block_on(Gpu::open(adapter, Capabilities::WebGpu)).unwrap();
    assert_eq!(gpu.limits().max_storage_buffers_per_shader_stage, 8);
    assert_eq!(gpu.limits().max_storage_buffer_binding_size, 128 << 20);
    Some(Device::Gpu(gpu))
}

fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    let size = expected.iter().fold(0f32, |size, x| size.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= 2e-5 * size, "{what} {i}: {found}, expected {expected}");
    }
    assert_eq!(found.len(), expected.len());
}

/// What a model does with a prompt, a token after it, and a step of training.
struct Run {
    logits: [Vec<f32>; 2],
    losses: [f64; 2],
}

fn run(config: &Config, device: &Device) -> taipan_lm::Result<Run> {
    let mut model = LanguageModel::new(config, DType::F32, 1, device)?;
    let ids = |ids: &[u32]| Tensor::new(ids, &[1, ids.len()], device);
    // Rows of every binding.
    let (first, state) = model.next(&ids(&[0, 50279, 25000])?, None)?;
    let (second, _) = model.next(&ids(&[43690])?, Some(state))?;
    let logits = [first.read_blocking()?, second.read_blocking()?];
    let batch = Batch {
        batch_size: 1,
        block_size: 4,
        ids: vec![0, 50279, 25000, 43690],
        targets: vec![50279, 25000, 43690, 1],
        seq_start: vec![1, 0, 0, 0],
    };
    let parameters: Vec<(&Tensor, Group)> =
        model.parameters().into_iter().map(|p| (p.tensor, Group::default())).collect();
    let mut adamw = AdamW::new(AdamWOptions::default(), &parameters)?;
    let loss = model.loss(&batch)?;
    let grads = loss.backward()?;
    let mut parameters: Vec<&mut Tensor> =
        model.parameters_mut().into_iter().map(|(_, parameter)| parameter).collect();
    adamw.step(1e-3, &mut parameters, &grads)?;
    let losses = [loss.item()?, model.loss(&batch)?.item()?];
    Ok(Run { logits, losses })
}

#[test]
fn a_full_vocabulary_runs_and_trains_with_the_limits_of_a_browser() {
    let Some(gpu) = browser_gpu() else { return };
    let config = Config { layers: vec![LayerKind::Ssm; 1], ..Config::default() };
    let table = config.vocab_size * config.hidden_size * DType::F32.size();
    assert!(table > 128 << 20, "embeddings and head do not fit into a binding");
    let (found, expected) = (run(&config, &gpu).unwrap(), run(&config, &Device::Cpu).unwrap());
    assert_close("logit after the prompt", &found.logits[0], &expected.logits[0]);
    assert_close("logit after a token", &found.logits[1], &expected.logits[1]);
    for (found, expected) in found.losses.iter().zip(expected.losses) {
        assert!((found - expected).abs() < 1e-4, "{found}, expected {expected}");
    }
    assert!(found.losses[1] < found.losses[0] - 0.1, "it learns: {:?}", found.losses);
}

//! The memory of a training step by the length of its sequences; in a process of its own, which counts.

#[path = "../../taipan/tests/harness/allocator.rs"]
mod allocator;

use allocator::{live, usage};
use taipan::{DType, Device};
use taipan_lm::{AttentionConfig, Batch, Config, LanguageModel, LayerKind, Preset, Ssm};

/// Attention computes with all pairs of tokens, and holds none of them.
#[test]
fn memory_of_a_hybrid_grows_with_the_length() {
    let config = Config {
        hidden_size: 16,
        layers: vec![LayerKind::Ssm, LayerKind::Attention],
        ssm: Ssm::mamba2(8),
        state_size: 8,
        attention: Some(AttentionConfig::new(2, 1, 8)),
        ..Preset::HybridTiny.config(64)
    };
    let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu).unwrap();
    let taken = [1 << 10, 1 << 12, 1 << 14].map(|length: usize| {
        let token = |i: usize| (i * 7919 % 64) as u32;
        let batch = Batch {
            batch_size: 1,
            block_size: length,
            ids: (0..length).map(token).collect(),
            targets: (1..=length).map(token).collect(),
            seq_start: vec![0; length],
        };
        let before = live();
        let usage = usage(|| model.loss(&batch).unwrap().backward().unwrap()).1;
        before + usage.peak
    });
    println!("1k, 4k and 16k tokens: {taken:?} bytes");
    assert!(taken[1] < 5 * taken[0] && taken[2] < 5 * taken[1], "{taken:?}");
}

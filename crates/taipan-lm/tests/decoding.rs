//! What decoding takes from the allocator, in a process of its own: buffers that other tests leave
//! in the pool would not be counted.

#[path = "../../taipan/tests/harness/allocator.rs"]
mod allocator;

use allocator::{live, usage};
use taipan::{DType, Device, Tensor};
use taipan_lm::{Config, LanguageModel, LayerKind, State};

const LAYERS: usize = 2;

/// Logits, states and all that is between them come from the pool after the first tokens.
#[test]
fn a_token_takes_no_memory() {
    let config =
        Config { vocab_size: 20_000, layers: vec![LayerKind::Ssm; LAYERS], ..Config::default() };
    let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu).unwrap();
    let next = |model: &LanguageModel, token: u32, state: Option<State>| {
        let ids = Tensor::new(&[token], &[1, 1], &Device::Cpu).unwrap();
        let (logits, state) = model.next(&ids, state).unwrap();
        (logits.argmax(1).unwrap().item().unwrap() as u32, state)
    };
    for model in [model.clone(), model.quantized().unwrap()] {
        // The first has no state to begin with, and the second the one that it replaces.
        let (mut token, mut state) = next(&model, 1, None);
        (token, state) = next(&model, token, Some(state));
        let before = live();
        for i in 0..10 {
            let (next, usage) = usage(|| next(&model, token, Some(state)));
            assert!(usage.largest < 64 << 10, "token {i} took large blocks: {usage:?}");
            // Handles of results, lists of them, rows that an op converts.
            assert!(usage.blocks <= 40 + 100 * LAYERS, "token {i} took many blocks: {usage:?}");
            (token, state) = next;
        }
        let after = live();
        assert!(after <= before + (4 << 10), "{after} bytes are held, {before} before");
    }
}

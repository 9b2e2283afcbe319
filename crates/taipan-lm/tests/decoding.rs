//! What decoding takes from the allocator, in a process of its own: buffers that other tests leave
//! in the pool would not be counted.

#[path = "../../taipan/tests/harness/allocator.rs"]
mod allocator;

use allocator::{live, usage};
use taipan::{DType, Device, Tensor};
use taipan_lm::{Config, LanguageModel, LayerKind, State};

/// Logits, states, their handles and all that is between them are reused after the first tokens, on
/// one thread and on two. The caller is a thread of the pool, as in `taipan generate`: from another
/// one, rayon takes memory for the queue that hands ops over.
#[test]
fn a_token_takes_no_memory() {
    let config =
        Config { vocab_size: 20_000, layers: vec![LayerKind::Ssm; 2], ..Config::default() };
    let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu).unwrap();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            decode(&model, "f32");
            decode(&model.clone().quantized().unwrap(), "int8");
        });
    }
}

fn decode(model: &LanguageModel, name: &str) {
    let next = |token: u32, state: Option<State>| {
        let ids = Tensor::new(&[token], &[1, 1], &Device::Cpu).unwrap();
        let (logits, state) = model.next(&ids, state).unwrap();
        (logits.argmax(1).unwrap().item().unwrap() as u32, state)
    };
    // The first has no state to begin with, the second the one that it replaces, and after it the
    // lists of idle memory are long enough.
    let (mut token, mut state) = next(1, None);
    for _ in 0..2 {
        (token, state) = next(token, Some(state));
    }
    let before = live();
    for i in 0..10 {
        let (next, usage) = usage(|| next(token, Some(state)));
        assert_eq!(usage.blocks, 0, "token {i} of {name} took memory: {usage:?}");
        (token, state) = next;
    }
    assert_eq!(live(), before, "{name} holds more memory");
}

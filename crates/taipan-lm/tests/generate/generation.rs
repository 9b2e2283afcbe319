//! Tokens.

use taipan::check::devices;
use taipan::{DType, Device, Tensor};
use taipan_lm::{Generation, Sampler};

use crate::{hybrid, model, prompt, steps};

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to(&Device::Cpu).unwrap().cast(DType::F64).unwrap().read_blocking().unwrap()
}

/// A prompt of more than one chunk gives what the model gives token by token.
#[test]
fn a_prompt_in_chunks_is_the_whole() {
    for model in
        devices().iter().flat_map(|device| [model, hybrid].map(|of| of(DType::F32, 1, device)))
    {
        let (ids, device) = (prompt(600), model.device());
        let mut generation = Generation::new(&model, Sampler::default()).unwrap();
        generation.prompt(&ids).unwrap();
        let found = generation.snapshot().unwrap();
        assert_eq!((found.state.position(), generation.position()), (600, 600));
        let mut expected = None;
        for id in &ids {
            let id = Tensor::new(&[*id], &[1, 1], device).unwrap();
            let state = expected.map(|(_, state)| state);
            expected = Some(model.next(&id, state).unwrap());
        }
        let (found, expected) = (read(&found.logits), read(&expected.unwrap().0));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-3, "{found}, expected {expected}");
        }
    }
}

/// At temperature 0 the likeliest token, whatever else is set; otherwise what the seed says.
#[test]
fn the_same_seed_gives_the_same_tokens() {
    for device in devices() {
        let model = model(DType::F32, 1, &device);
        let generate = |sampler: Sampler| {
            let mut generation = Generation::new(&model, sampler).unwrap();
            generation.prompt(&prompt(5)).unwrap();
            steps(&mut generation, 30).concat()
        };
        let sampler = |seed| Sampler { temperature: 0.8, top_p: 0.9, seed, ..Sampler::default() };
        assert_eq!(generate(sampler(1)), generate(sampler(1)));
        assert_ne!(generate(sampler(1)), generate(sampler(2)));
        let greedy = Sampler { temperature: 0.0, ..Sampler::default() };
        let mut state = None;
        let mut ids = prompt(5);
        let mut expected = Vec::new();
        for _ in 0..30 {
            let input = Tensor::new(&ids, &[1, ids.len()], &device).unwrap();
            let (logits, next) = model.next(&input, state).unwrap();
            let token = logits.argmax(1).unwrap().item().unwrap() as u32;
            expected.push(token);
            (ids, state) = (vec![token], Some(next));
        }
        assert_eq!(generate(Sampler { min_p: 0.3, seed: 9, ..greedy }), expected);
    }
}

/// Rows of a batch are continued independently, from one prompt.
#[test]
fn forks_go_their_own_ways() {
    for device in devices() {
        let model = model(DType::F32, 1, &device);
        let mut one = Generation::new(&model, Sampler::default()).unwrap();
        one.prompt(&prompt(10)).unwrap();
        let first = steps(&mut one, 1);
        // With a token that was sampled and is not processed yet.
        let mut three = one.fork(3).unwrap();
        assert_eq!((three.batch_size(), three.position()), (3, 11));
        let rows = steps(&mut three, 20);
        let row = |i: usize| rows.iter().map(|tokens| tokens[i]).collect::<Vec<u32>>();
        assert!(row(0) != row(1) && row(1) != row(2) && row(0) != row(2), "{rows:?}");
        // What they continue is the same: at temperature 0 they agree.
        let greedy = Sampler { temperature: 0.0, ..Sampler::default() };
        let mut one = Generation::new(&model, greedy).unwrap();
        one.prompt(&[&prompt(10)[..], &first[0]].concat()).unwrap();
        for tokens in steps(&mut one.fork(3).unwrap(), 5) {
            assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
        }
    }
}

/// Rows of the head that the tokenizer does not know are as if they were not there.
#[test]
fn padding_of_the_vocabulary_is_never_sampled() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let sampler = Sampler { temperature: 3.0, ..Sampler::default() };
    let mut all = Generation::new(&model, sampler.clone()).unwrap();
    let mut some = Generation::new(&model, sampler).unwrap().with_vocab_size(7).unwrap();
    for generation in [&mut all, &mut some] {
        generation.prompt(&prompt(3)).unwrap();
    }
    assert!(steps(&mut all, 100).concat().iter().any(|token| *token >= 7));
    let tokens = steps(&mut some, 100).concat();
    assert!(tokens.iter().all(|token| *token < 7), "{tokens:?}");
    let log_probs = pollster::block_on(some.log_probs(10)).unwrap().remove(0);
    assert_eq!(log_probs.top.len(), 7);
    let total: f64 = log_probs.top.iter().map(|(_, log_prob)| log_prob.exp()).sum();
    assert!((total - 1.0).abs() < 1e-12, "{total}");
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    for device in devices() {
        let model = model(DType::F32, 1, &device);
        let sampler = Sampler { temperature: 0.3, top_k: Some(5), ..Sampler::default() };
        let mut generation = Generation::new(&model, sampler).unwrap();
        assert!(pollster::block_on(generation.log_probs(1)).is_err());
        generation.prompt(&prompt(4)).unwrap();
        let logits = read(&generation.snapshot().unwrap().logits);
        let mut generation = generation.fork(2).unwrap();
        let tokens = generation.step_blocking().unwrap();
        let total: f64 = logits.iter().map(|x| x.exp()).sum();
        for (token, found) in
            tokens.iter().zip(pollster::block_on(generation.log_probs(3)).unwrap())
        {
            assert_eq!(found.id, *token);
            let expected = logits[*token as usize] - total.ln();
            assert!((found.log_prob - expected).abs() < 1e-9, "{found:?}, {expected}");
            let mut sorted: Vec<u32> = (0..300).collect();
            sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            let top: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
            assert_eq!(top, sorted[..3]);
        }
    }
}

#[test]
fn a_repetition_penalty_makes_texts_repeat_less() {
    for device in devices() {
        let model = model(DType::F32, 3, &device);
        let distinct = |repetition_penalty: f64| {
            let sampler = Sampler { temperature: 0.0, repetition_penalty, ..Sampler::default() };
            let mut generation = Generation::new(&model, sampler).unwrap();
            generation.prompt(&prompt(4)).unwrap();
            let mut tokens = steps(&mut generation.fork(2).unwrap(), 60).concat();
            tokens.sort_unstable();
            tokens.dedup();
            tokens.len()
        };
        let (free, penalized) = (distinct(1.0), distinct(1e6));
        assert!(free < 40 && penalized == 60, "{free}, {penalized}");
    }
}

#[test]
fn wrong_input_is_refused() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let refused = |sampler: Sampler, expected: &str| {
        let error = Generation::new(&model, sampler).err().unwrap().to_string();
        assert_eq!(error, expected);
    };
    let sampler = Sampler::default();
    refused(
        Sampler { temperature: -1.0, ..sampler.clone() },
        "sampler: temperature is -1, expected a finite number of 0 or more",
    );
    refused(
        Sampler { top_p: 0.0, ..sampler.clone() },
        "sampler: top_p is 0, expected above 0 and at most 1",
    );
    refused(
        Sampler { top_k: Some(0), ..sampler.clone() },
        "sampler: top_k is 0, expected 1 or more",
    );
    refused(
        Sampler { min_p: f64::NAN, ..sampler.clone() },
        "sampler: min_p is NaN, expected 0 to 1",
    );
    refused(
        Sampler { repetition_penalty: 0.0, ..sampler.clone() },
        "sampler: repetition_penalty is 0, expected a positive number",
    );
    let mut generation = Generation::new(&model, sampler).unwrap();
    let error = generation.step_blocking().unwrap_err().to_string();
    assert_eq!(error, "generate: no tokens yet, expected a prompt");
    let error = generation.prompt(&[1, 300]).unwrap_err().to_string();
    assert_eq!(error, "generate: token 300, expected less than 300");
    assert!(generation.fork(0).is_err() && generation.snapshot().is_err());
}

/// Of a batch, each sequence is forked with its state, its tokens and the token that is not
/// processed yet.
#[test]
fn every_sequence_of_a_batch_is_forked() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let with = |temperature, repetition_penalty| Sampler {
        temperature,
        repetition_penalty,
        ..Sampler::default()
    };
    let mut pair = Generation::new(&model, with(1.0, 1.0)).unwrap();
    pair.prompt(&prompt(10)).unwrap();
    let mut pair = pair.fork(2).unwrap();
    let tokens = steps(&mut pair, 8);
    assert!(tokens.iter().any(|tokens| tokens[0] != tokens[1]), "{tokens:?}");
    // The rest depends on nothing but what the fork has.
    let greedy = |mut generation: Generation<'_>| {
        let snapshot = generation.snapshot().unwrap();
        let mut generation = Generation::resume(&model, with(0.0, 2.0), snapshot).unwrap();
        steps(&mut generation, 6)
    };
    let expected = greedy(pair.clone());
    assert!(expected.iter().any(|tokens| tokens[0] != tokens[1]), "{expected:?}");
    let pending = pair.fork(3).unwrap();
    pair.snapshot().unwrap();
    for found in [pending, pair.fork(3).unwrap()].map(greedy) {
        for (found, expected) in found.iter().zip(&expected) {
            let [one, two] = [expected[0], expected[1]];
            assert_eq!(*found, [one, one, one, two, two, two]);
        }
    }
}

/// A prompt after some generated tokens continues them.
#[test]
fn a_prompt_follows_what_was_generated() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let mut generation = Generation::new(&model, Sampler::default()).unwrap();
    generation.prompt(&prompt(250)).unwrap();
    let tokens = steps(&mut generation, 3).concat();
    // Up to the next multiple of 256, and the rest.
    assert_eq!(generation.prompt_chunk(&prompt(20)).unwrap(), &prompt(20)[3..]);
    generation.prompt(&prompt(20)[3..]).unwrap();
    let mut whole = Generation::new(&model, Sampler::default()).unwrap();
    whole.prompt(&[&prompt(250)[..], &tokens, &prompt(20)].concat()).unwrap();
    assert_eq!((generation.position(), whole.position()), (273, 273));
    let [found, expected] =
        [generation, whole].map(|mut all| read(&all.snapshot().unwrap().logits));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-3, "{found}, expected {expected}");
    }
}

/// Sequences have different numbers of tokens, and the padding of their lists is no token.
#[test]
fn a_penalty_applies_to_the_tokens_of_a_sequence_only() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let mut generation = Generation::new(&model, Sampler::default()).unwrap();
    generation.prompt(&[5]).unwrap();
    let mut snapshot = generation.fork(2).unwrap().snapshot().unwrap();
    snapshot.tokens = vec![vec![5], vec![5, 6, 7]];
    let row: Vec<f32> = (0..300).map(|id| if id == 0 { 2.0 } else { 1.0 }).collect();
    snapshot.logits = Tensor::new(&row.repeat(2), &[2, 300], &Device::Cpu).unwrap();
    let sampler = Sampler { temperature: 0.0, repetition_penalty: 4.0, ..Sampler::default() };
    let mut generation = Generation::resume(&model, sampler.clone(), snapshot.clone()).unwrap();
    assert_eq!(generation.step_blocking().unwrap(), [0, 0]);
    // Now token 0 is one of theirs.
    let mut next = generation.snapshot().unwrap();
    next.logits = snapshot.logits.clone();
    let mut generation = Generation::resume(&model, sampler.clone(), next).unwrap();
    assert_eq!(generation.step_blocking().unwrap(), [1, 1]);
    snapshot.tokens.pop();
    let error = Generation::resume(&model, sampler, snapshot).err().unwrap().to_string();
    let expected = "logits are [2, 300] and 1 lists of tokens, expected [2, 300]";
    assert_eq!(error, format!("generate: {expected}"));
}

#[test]
fn a_vocabulary_has_a_token_and_no_more_than_the_model() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let generation = || Generation::new(&model, Sampler::default()).unwrap();
    let error = generation().with_vocab_size(0).err().unwrap().to_string();
    assert_eq!(error, "generate: a vocabulary of 0 tokens, expected 1 or more");
    let mut generation = generation().with_vocab_size(1000).unwrap();
    generation.prompt(&[5]).unwrap();
    generation.step_blocking().unwrap();
    assert_eq!(pollster::block_on(generation.log_probs(1000)).unwrap()[0].top.len(), 300);
}

/// Of equally probable tokens, the one with the smallest id comes first.
#[test]
fn equal_log_probabilities_are_in_the_order_of_ids() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let mut generation = Generation::new(&model, Sampler::default()).unwrap();
    generation.prompt(&[5]).unwrap();
    let mut snapshot = generation.snapshot().unwrap();
    snapshot.logits = Tensor::zeros(&[1, 300], DType::F32, &Device::Cpu).unwrap();
    let mut generation = Generation::resume(&model, Sampler::default(), snapshot).unwrap();
    generation.step_blocking().unwrap();
    let found = pollster::block_on(generation.log_probs(3)).unwrap().remove(0);
    assert_eq!(found.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(found.top.iter().all(|(_, log_prob)| (log_prob + 300f64.ln()).abs() < 1e-12));
}

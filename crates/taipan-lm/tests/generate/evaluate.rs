//! Scores of text.

use pollster::block_on;
use taipan::check::devices;
use taipan::{DType, Device};
use taipan_lm::{Batch, LanguageModel, Score, Scorer, WindowScorer};

use crate::{model, prompt};

/// `−ln p` of each token but the first, by the loss of training.
fn losses(model: &LanguageModel, ids: &[u32]) -> Vec<f64> {
    let length = ids.len() - 1;
    let one = |target: usize| {
        let mut targets = vec![taipan_lm::IGNORE; length];
        targets[target] = ids[target + 1];
        let ids = ids[..length].to_vec();
        let seq_start = vec![0; length];
        let batch = Batch { batch_size: 1, block_size: length, ids, targets, seq_start };
        model.loss(&batch).unwrap().item().unwrap()
    };
    (0..length).map(one).collect()
}

fn close(found: Score, expected: &[f64], tolerance: f64) {
    let nats: f64 = expected.iter().sum();
    assert_eq!(found.tokens, expected.len() as u64);
    let error = (found.nats - nats).abs() / nats;
    assert!(error < tolerance, "{found:?}, expected {nats}: off by {error:e}");
}

/// Through the state, pushed in parts of any size, more than one chunk: what f64 gives at once.
#[test]
fn a_long_text_through_the_state_is_the_whole() {
    let ids = prompt(2500);
    let length = ids.len() - 1;
    let batch = Batch {
        batch_size: 1,
        block_size: length,
        ids: ids[..length].to_vec(),
        targets: ids[1..].to_vec(),
        seq_start: vec![0; length],
    };
    let reference = model(DType::F64, 1, &Device::Cpu);
    let expected = reference.loss(&batch).unwrap().item().unwrap();
    let check = |model: &LanguageModel, tolerance: f64| {
        let mut scorer = Scorer::new(model);
        for part in ids.chunks(700) {
            block_on(scorer.push(part, &vec![3; part.len()])).unwrap();
        }
        let score = block_on(scorer.finish()).unwrap();
        assert_eq!((score.tokens, score.bytes), (2499, 3 * 2499));
        let error = (score.loss() - expected).abs() / expected;
        assert!(error < tolerance, "{score:?}, expected {expected}: off by {error:e}");
        assert_eq!(score.perplexity(), score.loss().exp());
        let bits = score.loss() / 2f64.ln() / 3.0;
        assert!((score.bits_per_byte().unwrap() - bits).abs() < 1e-12);
    };
    check(&reference, 1e-12);
    for device in devices() {
        check(&model(DType::F32, 1, &device), 1e-6);
    }
}

#[test]
fn context_is_not_scored_and_clones_continue_it() {
    let model = model(DType::F64, 1, &Device::Cpu);
    let ids = prompt(40);
    let mut scorer = Scorer::new(&model);
    block_on(scorer.context(&ids[..20])).unwrap();
    block_on(scorer.flush()).unwrap();
    for end in [[7, 8, 9], [1, 2, 3]] {
        let mut scorer = scorer.clone();
        block_on(scorer.push(&end, &[])).unwrap();
        let expected = losses(&model, &[&ids[..20], &end].concat());
        close(block_on(scorer.finish()).unwrap(), &expected[19..], 1e-12);
    }
    assert_eq!(block_on(scorer.finish()).unwrap(), Score::default());
    let nothing = block_on(Scorer::new(&model).finish()).unwrap();
    assert_eq!((nothing, nothing.bits_per_byte()), (Score::default(), None));
    let mut scorer = Scorer::new(&model);
    let error = block_on(scorer.push(&[300], &[])).unwrap_err().to_string();
    assert_eq!(error, "evaluate: token 300, expected less than 300");
}

/// The loop of Hugging Face's guide to perplexity, with losses of single tokens.
fn by_windows(model: &LanguageModel, ids: &[u32], window: usize, stride: usize) -> Vec<f64> {
    let (mut found, mut begin, mut end_before) = (Vec::new(), 0, 0);
    loop {
        let end = (begin + window).min(ids.len());
        let target = end - end_before;
        let losses = losses(model, &ids[begin..end]);
        found.extend(&losses[losses.len().saturating_sub(target)..]);
        end_before = end;
        if end == ids.len() {
            return found;
        }
        begin += stride;
    }
}

#[test]
fn windows_are_those_of_transformers_users() {
    let model = model(DType::F64, 1, &Device::Cpu);
    for (length, window, stride) in [
        (50, 16, 16),
        (48, 16, 16),
        (50, 16, 4),
        (40, 16, 8),
        (41, 16, 1),
        (10, 16, 16),
        (17, 16, 16),
    ] {
        let ids = prompt(length);
        let mut scorer = WindowScorer::new(&model, window, stride).unwrap();
        for part in ids.chunks(7) {
            block_on(scorer.push(part, &[])).unwrap();
        }
        let expected = by_windows(&model, &ids, window, stride);
        close(block_on(scorer.finish()).unwrap(), &expected, 1e-12);
    }
    assert!(WindowScorer::new(&model, 1, 1).is_err());
    assert!(WindowScorer::new(&model, 8, 9).is_err() && WindowScorer::new(&model, 8, 0).is_err());
}

/// The bytes are those of the tokens that were predicted: not of the first, and not of context.
#[test]
fn bytes_are_those_of_scored_tokens() {
    let model = model(DType::F64, 1, &Device::Cpu);
    let mut scorer = Scorer::new(&model);
    block_on(scorer.push(&[1, 2, 3], &[1, 10, 100])).unwrap();
    let score = block_on(scorer.finish()).unwrap();
    assert_eq!((score.tokens, score.bytes), (2, 110));
    // More context than is processed at a time: what it adds to the score of the whole is left out.
    let text = prompt(1500);
    let [mut context, mut pushed] = [Scorer::new(&model), Scorer::new(&model)];
    block_on(context.context(&text)).unwrap();
    block_on(pushed.push(&text, &[])).unwrap();
    let before = block_on(pushed.clone().finish()).unwrap();
    let [score, whole] = [context, pushed].map(|mut scorer| {
        block_on(scorer.push(&[7, 8], &[1, 10])).unwrap();
        block_on(scorer.finish()).unwrap()
    });
    assert_eq!((score.tokens, score.bytes, whole.tokens), (2, 11, 1501));
    let expected = whole.nats - before.nats;
    assert!((score.nats - expected).abs() < 1e-9, "{score:?}, expected {expected} nats");
}

//! States in files.

use taipan::check::devices;
use taipan::nn::Module;
use taipan::{DType, Device};
use taipan_lm::{Generation, Sampler, Snapshot};

use crate::{directory, fingerprint, hybrid, model, prompt, steps};

fn bytes(snapshot: &Snapshot, model: &taipan_lm::LanguageModel, fingerprint: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let out = |chunk: &[u8]| {
        bytes.extend_from_slice(chunk);
        Ok(())
    };
    pollster::block_on(snapshot.write(model, fingerprint, out)).unwrap();
    bytes
}

/// A batch with every setting of the sampler, stopped at several places: after a prompt, between two
/// tokens, and in the middle of a second prompt.
#[test]
fn a_continuation_is_that_without_a_stop() {
    let directory = directory("continuation");
    for device in devices() {
        let half = device.supports(DType::F16).then_some(DType::F16);
        for (dtype, new) in [DType::F32]
            .into_iter()
            .chain(half)
            .flat_map(|dtype| [model as fn(_, _, &Device) -> _, hybrid].map(|new| (dtype, new)))
        {
            let model = new(dtype, 1, &device);
            let fingerprint = fingerprint(&model);
            let sampler = Sampler {
                temperature: 1.1,
                top_k: Some(100),
                top_p: 0.95,
                min_p: 0.001,
                repetition_penalty: 1.2,
                seed: 5,
            };
            let run = |stop: &mut dyn FnMut(Generation<'_>) -> Snapshot| {
                let mut tokens = Vec::new();
                let mut generation = Generation::new(&model, sampler.clone()).unwrap();
                generation.prompt(&prompt(300)).unwrap();
                let mut next = |generation: Generation<'_>| {
                    let snapshot = stop(generation);
                    Generation::resume(&model, sampler.clone(), snapshot).unwrap()
                };
                generation = next(generation).fork(2).unwrap();
                for _ in 0..3 {
                    tokens.extend(steps(&mut generation, 7));
                    generation = next(generation);
                }
                generation.prompt(&prompt(20)).unwrap();
                generation = next(generation);
                tokens.extend(steps(&mut generation, 7));
                (tokens, bytes(&generation.snapshot().unwrap(), &model, &fingerprint))
            };
            let whole = run(&mut |mut generation| generation.snapshot().unwrap());
            let path = directory.join("state");
            let stopped = run(&mut |mut generation| {
                generation.snapshot().unwrap().save(&path, &model, &fingerprint).unwrap();
                Snapshot::load(&path, &model, &fingerprint).unwrap()
            });
            assert_eq!(whole.0, stopped.0, "{dtype} on {}", device.name());
            assert!(whole.1 == stopped.1, "the states of {dtype} on {}", device.name());
        }
    }
}

/// The same without a snapshot at all.
#[test]
fn a_snapshot_changes_nothing() {
    for device in devices() {
        let model = model(DType::F32, 1, &device);
        let run = |snapshots: bool| {
            let mut generation = Generation::new(&model, Sampler::default()).unwrap();
            generation.prompt(&prompt(5)).unwrap();
            let mut tokens = Vec::new();
            for _ in 0..10 {
                tokens.extend(steps(&mut generation, 1));
                if snapshots {
                    generation.snapshot().unwrap();
                }
            }
            tokens
        };
        assert_eq!(run(false), run(true));
    }
}

/// The weights and the dtype are the model, the device is not.
#[test]
fn fingerprints_tell_models_apart() {
    let cpu = |dtype, seed| fingerprint(&model(dtype, seed, &Device::Cpu));
    let one = cpu(DType::F32, 1);
    assert_eq!(one, cpu(DType::F32, 1));
    assert!(one != cpu(DType::F32, 2) && one != cpu(DType::F16, 1));
    for device in devices() {
        assert_eq!(fingerprint(&model(DType::F32, 1, &device)), one);
    }
    let mut changed = model(DType::F32, 1, &Device::Cpu);
    let (_, last) = changed.parameters_mut().pop().unwrap();
    let mut values = last.read_blocking::<f32>().unwrap();
    values[7] = f32::from_bits(values[7].to_bits() ^ 1);
    *last = taipan::Tensor::new(&values, last.shape(), &Device::Cpu).unwrap();
    assert_ne!(fingerprint(&changed), one);
}

#[test]
fn the_state_of_another_model_is_refused() {
    let [one, other] = [1, 2].map(|seed| model(DType::F32, seed, &Device::Cpu));
    let [ours, theirs] = [&one, &other].map(fingerprint);
    let mut generation = Generation::new(&other, Sampler::default()).unwrap();
    generation.prompt(&prompt(5)).unwrap();
    let bytes = bytes(&generation.snapshot().unwrap(), &other, &theirs);
    let error = Snapshot::parse("a.state", &bytes, &one, &ours).unwrap_err().to_string();
    let shape = "2 layers of width 16, vocabulary 300, f32";
    let expected = format!(
        "a.state: a state of the model {theirs} ({shape}), expected one of {ours} ({shape})"
    );
    assert_eq!(error, expected);
}

/// Whatever is in a file: an error or a state, never a panic, nor memory beyond the file's size.
#[test]
fn damaged_states_are_refused() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let fingerprint = fingerprint(&model);
    let mut generation = Generation::new(&model, Sampler::default()).unwrap();
    generation.prompt(&prompt(5)).unwrap();
    let good = bytes(&generation.snapshot().unwrap(), &model, &fingerprint);
    let parse = |bytes: &[u8]| Snapshot::parse("state", bytes, &model, &fingerprint);
    assert!(parse(&good).is_ok());
    for length in (0..good.len()).step_by(41).chain([good.len() - 1]) {
        assert!(parse(&good[..length]).is_err(), "cut off after {length} bytes");
    }
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut random = 1u32;
    for _ in 0..3000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random % 3 {
            random = random.wrapping_mul(1664525).wrapping_add(1013904223);
            bytes[random as usize % header] = (random >> 24) as u8;
        }
        if let Ok(snapshot) = parse(&bytes) {
            // Of what passes, a continuation gives tokens or an error.
            let _ = Generation::resume(&model, Sampler::default(), snapshot)
                .and_then(|mut generation| generation.step_blocking());
        }
    }
    let text = String::from_utf8_lossy(&good[8..header]).into_owned();
    let replaced = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}: {text}");
        let header = text.replacen(from, to, 1);
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length[..], header.as_bytes(), &good[8 + text.len()..]].concat();
        parse(&bytes).unwrap_err().to_string()
    };
    let cases = [
        (r#""position":"5""#, r#""position":"-5""#, "position is \"-5\", expected a number up to"),
        (r#""position":"5""#, r#""position":"18446744073709551615""#, "position is \"18446744"),
        (r#""counter":"0","#, "", "no counter in it, expected a state"),
        ("taipan-state-1", "taipan-state-9", "the format is \"taipan-state-9\", expected "),
        (r#""tokens":{"dtype":"U32""#, r#""tokens":{"dtype":"F32""#, "tokens are [1, 5] in f32"),
        ("[1,300]", "[300,1]", "logits is [300, 1], expected [1, 300]"),
        ("[1, 300]", "[300, 1]", "logits is [300, 1], expected [1, 300]"),
        ("layers.1.ssm_state", "layers.7.ssm_state", "layers.1.ssm_state is missing"),
    ];
    for (from, to, expected) in cases.into_iter().filter(|(from, ..)| text.contains(from)) {
        let error = replaced(from, to);
        assert!(error.starts_with(&format!("state: {expected}")), "{from} → {to}: {error}");
    }
    assert!(Snapshot::load("/nowhere".as_ref(), &model, &fingerprint).is_err());
}

/// What a file says of its tensors must be what the model has.
#[test]
fn states_of_other_types_are_refused() {
    let [model, wide] = [DType::F32, DType::F64].map(|dtype| model(dtype, 1, &Device::Cpu));
    let fingerprint = fingerprint(&model);
    let mut generation =
        Generation::new(&model, Sampler { seed: 9, ..Sampler::default() }).unwrap();
    generation.prompt(&prompt(5)).unwrap();
    let good = generation.snapshot().unwrap();
    let parse = |snapshot: &Snapshot| {
        Snapshot::parse("state", bytes(snapshot, &model, &fingerprint), &model, &fingerprint)
    };
    assert_eq!(parse(&good).unwrap().seed, 9);
    let pair = generation.fork(2).unwrap().snapshot().unwrap();
    let tokens = vec![vec![5], vec![5, 6, 7]];
    let pair = Snapshot { tokens: tokens.clone(), ..pair };
    assert_eq!(parse(&pair).unwrap().tokens, tokens);
    let error = good.state.select(&[0, 1]).unwrap_err().to_string();
    assert_eq!(error, "select: sequence 1, expected less than the batch size, 1");
    let logits = good.logits.cast(DType::F64).unwrap();
    let error = parse(&Snapshot { logits, ..good.clone() }).unwrap_err().to_string();
    assert_eq!(error, "state: logits are in f64, expected f32");
    let none = Snapshot { tokens: Vec::new(), ..good.clone() };
    let error = parse(&none).unwrap_err().to_string();
    assert_eq!(error, "state: tokens are [0, 0] in u32, expected [b, m] in u32");
    let mut generation = Generation::new(&wide, Sampler::default()).unwrap();
    generation.prompt(&prompt(5)).unwrap();
    let state = generation.snapshot().unwrap().state;
    let error = parse(&Snapshot { state, ..good }).unwrap_err().to_string();
    assert_eq!(error, "state: layers.0.conv_state is in f64, expected f32");
}

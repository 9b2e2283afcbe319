//! States of prompts on disk.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use taipan::{DType, Device};
use taipan_lm::{Generation, LanguageModel, PromptCache, Sampler};

use crate::{directory, fingerprint, model, prompt, steps};

/// Generate some tokens; how many of the prompt were in the cache, the tokens, and the logits.
fn ask(
    model: &LanguageModel,
    cache: Option<&PromptCache>,
    ids: &[u32],
) -> (usize, Vec<u32>, Vec<f32>) {
    let sampler = Sampler { repetition_penalty: 1.3, ..Sampler::default() };
    let mut generation = Generation::new(model, sampler.clone()).unwrap();
    let mut done = 0;
    if let Some(cache) = cache {
        let hit = cache.find(model, ids);
        assert!(hit.problems.is_empty(), "{:?}", hit.problems);
        if let Some((length, snapshot)) = hit.found {
            done = length;
            generation = Generation::resume(model, sampler, snapshot).unwrap();
        }
    }
    let cached = done;
    while done < ids.len() {
        done = ids.len() - generation.prompt_chunk(&ids[done..]).unwrap().len();
        if let Some(cache) = cache {
            cache.store(&mut generation, &ids[..done]).unwrap();
        }
    }
    let logits = generation.snapshot().unwrap().logits.read_blocking().unwrap();
    (cached, steps(&mut generation, 10).concat(), logits)
}

/// A model, and an empty cache for it with room for everything, in this directory.
fn model_with_cache(name: &str) -> (LanguageModel, PromptCache, PathBuf) {
    let model = model(DType::F32, 1, &Device::Cpu);
    let directory = directory(name);
    let cache = PromptCache::open(&directory, 1 << 30, &fingerprint(&model)).unwrap();
    (model, cache, directory)
}

fn files(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_prompt_asked_again_is_not_processed_again_and_gives_the_same_bits() {
    let (model, cache, directory) = model_with_cache("again");
    let ids = prompt(1000);
    let [whole, first, again] =
        [None, Some(&cache), Some(&cache)].map(|cache| ask(&model, cache, &ids));
    assert_eq!((first.0, again.0), (0, 1000));
    assert_eq!(files(&directory).len(), 4);
    assert!(whole.1 == first.1 && whole.1 == again.1 && whole.2 == first.2 && whole.2 == again.2);

    // Another end, a longer and a shorter one: from the last multiple of 256 that they share.
    let other_end = [&ids[..900], &[1, 2, 3]].concat();
    let longer = [&ids[..], &[5, 6]].concat();
    for (ids, expected) in
        [(&other_end, 768), (&longer, 768), (&ids[..300].to_vec(), 256), (&prompt(5), 0)]
    {
        let (cached, tokens, logits) = ask(&model, Some(&cache), ids);
        assert_eq!(cached, expected);
        let whole = ask(&model, None, ids);
        assert!((tokens, logits) == (whole.1, whole.2), "{expected}");
    }
    // A prompt of a whole number of chunks.
    assert_eq!(ask(&model, Some(&cache), &ids[..512]).0, 512);
}

#[test]
fn models_do_not_share_states() {
    let [one, other] = [1, 2].map(|seed| model(DType::F32, seed, &Device::Cpu));
    let directory = directory("models");
    let open = |model| PromptCache::open(&directory, 1 << 30, &fingerprint(model)).unwrap();
    let ids = prompt(300);
    ask(&one, Some(&open(&one)), &ids);
    assert_eq!(ask(&other, Some(&open(&other)), &ids), ask(&other, None, &ids));
    assert_eq!(ask(&one, Some(&open(&one)), &ids).0, 300);
}

#[test]
fn what_was_not_used_for_longest_is_removed() {
    let (model, cache, directory) = model_with_cache("bounded");
    let fingerprint = fingerprint(&model);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| vec![i, 1, 2]).collect();
    ask(&model, Some(&cache), &prompts[0]);
    let size = std::fs::metadata(directory.join(&files(&directory)[0])).unwrap().len();
    let path = |ids: &[u32]| {
        let before = files(&directory);
        ask(&model, Some(&cache), ids);
        let new = files(&directory).into_iter().find(|name| !before.contains(name));
        directory.join(new.unwrap())
    };
    let first = directory.join(&files(&directory)[0]);
    let all = [first, path(&prompts[1]), path(&prompts[2])];
    // The first was written longest ago, and then used again.
    let now = SystemTime::now();
    for (path, seconds) in all.iter().zip([40, 30, 20]) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(now - Duration::from_secs(seconds)).unwrap();
    }
    assert!(cache.find(&model, &prompts[0]).found.is_some());
    let abandoned = directory.join("0.state.safetensors.tmp-1");
    std::fs::write(&abandoned, "").unwrap();
    let other = directory.join("notes.txt");
    std::fs::write(&other, "not ours").unwrap();
    let small = PromptCache::open(&directory, 3 * size, &fingerprint).unwrap();
    ask(&model, Some(&small), &prompts[3]);
    let there = all.each_ref().map(|path| path.exists());
    assert_eq!(there, [true, false, true]);
    assert!(abandoned.exists() && other.exists(), "somebody may be writing it");
    let file = std::fs::File::options().write(true).open(&abandoned).unwrap();
    file.set_modified(now - Duration::from_secs(4000)).unwrap();
    let none = PromptCache::open(&directory, 0, &fingerprint).unwrap();
    ask(&model, Some(&none), &[9, 9]);
    assert_eq!(files(&directory), ["notes.txt"]);
}

#[test]
fn a_damaged_file_is_reported_and_removed() {
    let (model, cache, directory) = model_with_cache("damaged");
    let ids = prompt(300);
    ask(&model, Some(&cache), &ids);
    for name in files(&directory) {
        std::fs::write(directory.join(name), "no state").unwrap();
    }
    let hit = cache.find(&model, &ids);
    assert!(hit.found.is_none());
    assert_eq!(hit.problems.len(), 2, "{:?}", hit.problems);
    assert!(files(&directory).is_empty());
    assert!(cache.find(&model, &ids).problems.is_empty());
}

/// Several at once, with room for a few files only: whatever disappears meanwhile, results are the
/// same.
#[test]
fn several_programs_at_once() {
    let model = model(DType::F32, 1, &Device::Cpu);
    let (directory, fingerprint) = (directory("together"), fingerprint(&model));
    let prompts: Vec<Vec<u32>> = (0..3).map(|i| [&[i], &prompt(600)[..]].concat()).collect();
    let expected: Vec<_> = prompts.iter().map(|ids| ask(&model, None, ids)).collect();
    let ask_all = |i: usize| {
        let cache = PromptCache::open(&directory, 60_000, &fingerprint).unwrap();
        for round in 0..6 {
            let which = (i + round) % 3;
            let (_, tokens, logits) = ask(&model, Some(&cache), &prompts[which]);
            let expected = &expected[which];
            assert!((&tokens, &logits) == (&expected.1, &expected.2));
        }
    };
    std::thread::scope(|scope| {
        for i in 0..2 {
            scope.spawn(move || ask_all(i));
        }
    });
}

/// Prompts whose checksums are the same, as good as: the file of one under the name of the other.
#[test]
fn the_state_of_another_prompt_is_not_used() {
    let (model, cache, directory) = model_with_cache("collision");
    let [one, other] = [[1, 2, 3], [4, 5, 6]];
    ask(&model, Some(&cache), &one);
    let first = directory.join(&files(&directory)[0]);
    ask(&model, Some(&cache), &other);
    let second = files(&directory).into_iter().map(|name| directory.join(name));
    let second = second.into_iter().find(|path| *path != first).unwrap();
    std::fs::copy(&first, &second).unwrap();
    let hit = cache.find(&model, &other);
    assert!(hit.found.is_none() && hit.problems.is_empty());
    assert!(cache.find(&model, &one).found.is_some());
}

//! Checkpoints: which there are, and which are refused.

use std::fs;
use std::path::Path;

use crate::harness::{Run, TEXT, files, steps};
use taipan::optim::Schedule;
use taipan_lm::data::Dataset;
use taipan_lm::{
    Activations, Recipe, Tokenizer, Trainer, best_checkpoint, checkpoints, verify_checkpoint,
};

/// A run with a checkpoint of steps 1 and 2.
fn two_steps() -> Run {
    let run = Run::new();
    let mut trainer = run.begin();
    for _ in 0..2 {
        steps(&mut trainer, 1);
        trainer.save_blocking(run.path(), 9).unwrap();
    }
    run
}

fn refused(run: &Run) -> String {
    match run.resume() {
        Ok(_) => panic!("resumed"),
        Err(error) => error.to_string().replace(&run.path().display().to_string(), "RUN"),
    }
}

/// Edit `trainer.json` so that its checksum does not tell.
fn edit_progress(checkpoint: &Path, from: &str, to: &str) {
    let path = checkpoint.join("trainer.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}: {text}");
    let (before, checksum) = text.rsplit_once("\"checksum\": ").unwrap();
    let checksum = checksum.trim_end_matches("\n}\n");
    let text = format!("{before}\"checksum\": null\n}}\n").replace(from, to);
    assert_eq!(checksum.len(), 34);
    let checksum = format!("\"checksum\": \"{}\"", taipan_lm::checksum(text.as_bytes()));
    fs::write(&path, text.replace("\"checksum\": null", &checksum)).unwrap();
}

#[test]
fn the_last_ones_and_the_best_are_kept() {
    let run = Run::new();
    let mut trainer = run.begin();
    let mut losses = Vec::new();
    for step in 1..=6 {
        steps(&mut trainer, 1);
        if step % 2 == 0 {
            losses.push(pollster::block_on(trainer.evaluate(u64::MAX)).unwrap());
        }
        trainer.save_blocking(run.path(), 9).unwrap();
    }
    let (best, evaluation) = best_checkpoint(run.path()).unwrap().unwrap();
    assert_eq!(best, run.checkpoint(6), "it learns");
    assert_eq!(evaluation, losses[2]);

    // As if what followed had been worse.
    edit_progress(&run.checkpoint(2), &format!("{}", losses[0].loss), "0.25");
    steps(&mut trainer, 1);
    trainer.save_blocking(run.path(), 2).unwrap();
    assert_eq!(run.names(), ["checkpoint-2", "checkpoint-6", "checkpoint-7"]);
    let found: Vec<u64> = checkpoints(run.path()).unwrap().into_iter().map(|(n, _)| n).collect();
    assert_eq!(found, [2, 6, 7]);
    assert_eq!(best_checkpoint(run.path()).unwrap().unwrap().0, run.checkpoint(2));
}

#[test]
fn the_last_in_number_is_resumed_and_what_a_kill_left_is_removed() {
    let run = two_steps();
    let mut trainer = run.resume().unwrap();
    steps(&mut trainer, 8);
    trainer.save_blocking(run.path(), 9).unwrap();
    let unfinished = run.path().join("checkpoint-11.tmp-123");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("model.safetensors"), "half of it").unwrap();
    fs::write(run.path().join("model.safetensors.tmp-123"), "half of it").unwrap();
    fs::write(run.checkpoint(1).join("trainer.json.tmp-123"), "{").unwrap();
    fs::write(run.path().join("notes.tmp-1"), "the user's own").unwrap();
    fs::create_dir(run.path().join("checkpoint-012")).unwrap();

    let trainer = run.resume().unwrap();
    assert_eq!(trainer.checkpoint(), Some(&*run.checkpoint(10)));
    let expected =
        ["checkpoint-012", "checkpoint-1", "checkpoint-10", "checkpoint-2", "notes.tmp-1"];
    assert_eq!(run.names(), expected);
    assert!(files(&run.checkpoint(1)).keys().eq(files(&run.checkpoint(2)).keys()));
}

#[test]
fn a_step_is_written_once_and_brought_up_to_date() {
    let run = Run::new();
    let mut trainer = run.one_step(1);
    let before = files(&run.checkpoint(1));
    trainer.save_blocking(run.path(), 1).unwrap();
    assert_eq!(files(&run.checkpoint(1)), before);
    let evaluation = pollster::block_on(trainer.evaluate(u64::MAX)).unwrap();
    trainer.save_blocking(run.path(), 1).unwrap();
    assert_eq!(best_checkpoint(run.path()).unwrap(), Some((run.checkpoint(1), evaluation)));
    assert_eq!(run.names(), ["checkpoint-1"]);

    let mut other = run.begin();
    steps(&mut other, 1);
    let error = other.save_blocking(run.path(), 1).unwrap_err().to_string();
    assert_eq!(error, format!("{}: exists already", run.checkpoint(1).display()));
    assert_eq!(
        other.save_blocking(run.path(), 0).unwrap_err().to_string(),
        "keep: 0 found, expected 1 or more checkpoints"
    );
}

#[test]
fn damaged_checkpoints_are_refused_with_the_reason() {
    // Every file, without its last byte, with another one, and without itself.
    let run = two_steps();
    let whole = files(&run.checkpoint(2));
    for (name, bytes) in &whole {
        let path = run.checkpoint(2).join(name);
        let end = bytes.trim_ascii_end().len() - 1; // what is in front of `}` and a line's end
        let mut changed = bytes.clone();
        changed[end - 2] ^= 1;
        for bytes in [Some(&bytes[..end]), Some(&changed), None] {
            match bytes {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let error = refused(&run);
            assert!(error.starts_with(&format!("RUN/checkpoint-2/{name}: ")), "{error}");
            let advice =
                "; without the directory RUN/checkpoint-2, the run resumes from RUN/checkpoint-1";
            assert!(error.ends_with(advice), "{error}");
        }
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(run.resume().unwrap().steps_done(), 2);

    fs::remove_dir_all(run.checkpoint(2)).unwrap();
    assert_eq!(run.resume().unwrap().steps_done(), 1, "the one before");
    fs::rename(run.checkpoint(1), run.checkpoint(3)).unwrap();
    let error = "RUN/checkpoint-3/trainer.json: step is 1, unlike in its directory's name; \
                 there is no earlier checkpoint";
    assert_eq!(refused(&run), error);
    let path = run.checkpoint(3).join("trainer.json");
    fs::write(&path, r#"{"format": 1}"#).unwrap();
    let error = refused(&run);
    assert!(
        error.starts_with("RUN/checkpoint-3/trainer.json: format is 1, expected 2; "),
        "{error}"
    );
    fs::remove_dir_all(run.checkpoint(3)).unwrap();
    assert_eq!(refused(&run), "RUN: no checkpoint found, expected one to resume from");
}

#[test]
fn a_damaged_old_checkpoint_neither_ends_a_run_nor_is_lost() {
    let run = two_steps();
    let path = run.checkpoint(1).join("trainer.json");
    fs::write(&path, "{").unwrap();
    let mut trainer = run.resume().unwrap();
    steps(&mut trainer, 1);
    let saved = trainer.save_blocking(run.path(), 1).unwrap();
    assert_eq!(saved.checkpoint, run.checkpoint(3));
    assert_eq!(trainer.checkpoint(), Some(&*run.checkpoint(3)));
    let problems: Vec<_> = saved.problems.iter().map(ToString::to_string).collect();
    assert!(problems[0].starts_with(&path.display().to_string()), "{problems:?}");
    assert_eq!(problems.len(), 1);
    assert_eq!(run.names(), ["checkpoint-1", "checkpoint-3"], "2 is pruned, 1 may be the best");
    assert_eq!(fs::read_to_string(&path).unwrap(), "{");
}

#[test]
fn a_resumed_run_knows_its_evaluation_and_its_notes() {
    let run = Run::new();
    let mut trainer = run.begin();
    steps(&mut trainer, 1);
    let evaluation = pollster::block_on(trainer.evaluate(u64::MAX)).unwrap();
    trainer.notes.insert("mean".into(), (0.1 + 0.2).into());
    trainer.save_blocking(run.path(), 1).unwrap();
    let before = files(&run.checkpoint(1));
    let mut trainer = run.resume().unwrap();
    assert_eq!(trainer.notes["mean"].as_f64(), Some(0.1 + 0.2));
    trainer.save_blocking(run.path(), 1).unwrap();
    assert_eq!(files(&run.checkpoint(1)), before);
    assert_eq!(best_checkpoint(run.path()).unwrap(), Some((run.checkpoint(1), evaluation)));
    let info = verify_checkpoint(&run.checkpoint(1)).unwrap();
    assert_eq!((info.step, info.evaluation, info.files), (1, Some(evaluation), 6));
    assert_eq!(info.data, trainer.dataset().fingerprint());
    // The next step has none.
    steps(&mut trainer, 1);
    trainer.save_blocking(run.path(), 2).unwrap();
    assert_eq!(best_checkpoint(run.path()).unwrap(), Some((run.checkpoint(1), evaluation)));
}

#[test]
fn the_state_of_another_model_is_refused() {
    let run = two_steps();
    let mut other = Run::new();
    other.config.state_size = 5;
    let mut trainer = other.begin();
    steps(&mut trainer, 2);
    trainer.save_blocking(other.path(), 1).unwrap();
    let name = "trainer.safetensors";
    let [own, foreign] = [&run, &other].map(|run| fs::read(run.checkpoint(2).join(name)).unwrap());
    fs::write(run.checkpoint(2).join(name), &foreign).unwrap();
    let [own, foreign] = [own, foreign].map(|bytes| taipan_lm::checksum(&bytes));
    edit_progress(&run.checkpoint(2), &own, &foreign);
    let error = refused(&run);
    assert!(error.starts_with("RUN/checkpoint-2/trainer.safetensors: load_state: "), "{error}");
}

#[test]
fn another_run_is_not_resumed() {
    let run = two_steps();
    let resume = |change: fn(&mut Recipe)| {
        let data = Dataset::open(run.path().join("data")).unwrap();
        Trainer::resume(run.path(), data, &run.device, change)
    };
    let longer = resume(|recipe| {
        recipe.schedule = Schedule { total: 80, ..recipe.schedule };
        recipe.activations = Activations::Recomputed;
    });
    assert_eq!(longer.unwrap().recipe().schedule.total, 80);
    let error = resume(|recipe| recipe.seed = 8).err().unwrap().to_string();
    assert!(error.starts_with("recipe: seed is 8, but the run began with 7; "), "{error}");
    let error = resume(|recipe| recipe.schedule.peak = 0.5).err().unwrap().to_string();
    assert!(error.starts_with("recipe: schedule is {"), "{error}");
    let error = resume(|recipe| recipe.schedule.total = 0).err().unwrap().to_string();
    assert_eq!(error, "recipe: schedule.total is 0, expected 1 to 1099511627776");

    let other = Run::new();
    let data = other.data(&TEXT.to_uppercase());
    let found = data.fingerprint().to_owned();
    let error = Trainer::resume(run.path(), data, &run.device, |_| {}).err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("data: the fingerprint is {found}, but the run began with "))
    );
}

#[test]
fn a_longer_run_is_not_lost_when_it_stops_at_once() {
    let run = two_steps();
    let data = Dataset::open(run.path().join("data")).unwrap();
    let longer = |recipe: &mut Recipe| recipe.schedule.total = 80;
    let mut trainer = Trainer::resume(run.path(), data, &run.device, longer).unwrap();
    trainer.save_blocking(run.path(), 1).unwrap();
    assert_eq!(run.resume().unwrap().recipe().schedule.total, 80);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let run = Run::new();
    let error = |run: &Run| {
        let (data, tokenizer) = (run.data(TEXT), Tokenizer::bytes());
        let trainer = Trainer::new(run.model(), data, tokenizer, run.recipe.clone());
        trainer.err().unwrap().to_string()
    };
    let mut small = Run::new();
    small.config.vocab_size = 200;
    assert_eq!(error(&small), "data: a vocabulary of 256, expected at most the model's, 200");
    let with = |recipe: Recipe| error(&Run { recipe, ..Run::new() });
    let recipe = Recipe { freeze: vec!["*.A_log".into(), "*.B".into()], ..run.recipe.clone() };
    assert_eq!(
        with(recipe),
        "freeze: \"*.B\" matches no parameter, expected names like \
         backbone.embeddings.weight or backbone.norm_f.weight"
    );
    let recipe = Recipe { freeze: vec!["*".into()], ..run.recipe.clone() };
    assert_eq!(with(recipe), "recipe: freeze is [\"*\"], which leaves nothing to train");
    let recipe = Recipe { block_size: 4000, ..run.recipe.clone() };
    assert!(with(recipe).starts_with("data: "), "too little text for a block");
}

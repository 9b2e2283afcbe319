//! A disk that is full, in a process of its own: the limit on the size of files is that of all its
//! threads.
#![cfg(target_os = "linux")]

#[path = "train/harness.rs"]
mod harness;

use harness::{Run, files, steps};

/// Let files have at most this many bytes. What goes beyond is an error, as it is on a full disk.
fn limit_files(bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain calls with a pointer to a struct that outlives them; without the handler the
    // signal would end the process.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit), 0);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_leaves_the_last_one() {
    let run = Run::new();
    let mut trainer = run.one_step(1);
    trainer.export_blocking(run.path()).unwrap();
    let (before, exported) = (files(&run.checkpoint(1)), run.names());
    steps(&mut trainer, 1);

    // With a limit below a file's size, the first larger one fails; what is smaller is written.
    let mut failed = Vec::new();
    for bytes in before.values() {
        limit_files(bytes.len() as u64 - 1);
        let (saved, export) =
            (trainer.save_blocking(run.path(), 1), trainer.export_blocking(run.path()));
        limit_files(u64::MAX);
        let error = saved.unwrap_err().to_string();
        let at = run.checkpoint(2).display().to_string();
        let name = error.strip_prefix(&format!("{at}/")).expect(&error);
        let (name, why) = name.split_once(": ").unwrap();
        assert!(why.starts_with("File too large"), "{why}");
        assert_eq!(export.is_ok(), name == "trainer.safetensors", "which is not exported");
        failed.push(name.to_owned());
        assert_eq!(run.names(), exported, "nothing is left behind");
        assert!(files(&run.checkpoint(1)) == before);
        assert_eq!(run.resume().unwrap().steps_done(), 1);
    }
    failed.sort();
    failed.dedup();
    // All but those that follow a larger one.
    assert_eq!(
        failed,
        ["config.json", "model.safetensors", "tokenizer.json", "trainer.safetensors"]
    );

    trainer.save_blocking(run.path(), 1).unwrap();
    assert_eq!(run.resume().unwrap().steps_done(), 2);
}

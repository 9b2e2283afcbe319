//! What a run tells people. It never fails and, while the model learns, never waits: a terminal that is gone or
//! stopped by Ctrl-S, a pipe that nobody reads and a log on a full disk do not concern the training.

use std::io::{ErrorKind, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Texts that wait for a slow reader; more are dropped.
const WAITING: usize = 1000;
/// How long a non-blocking output that is full is tried before a text is dropped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Standard output, written by a thread of its own.
pub struct Console {
    texts: Option<SyncSender<String>>,
    writer: Option<JoinHandle<()>>,
    /// The first failure, until it is taken.
    failure: Arc<Mutex<Option<String>>>,
}

impl Console {
    pub fn new() -> Console {
        let (texts, waiting) = sync_channel(WAITING);
        let failure = Arc::new(Mutex::new(None));
        let told = failure.clone();
        let writer = std::thread::spawn(move || write_all(&waiting, &told));
        Console { texts: Some(texts), writer: Some(writer), failure }
    }

    /// Show a text, or drop it if too many are waiting.
    pub fn offer(&self, text: String) {
        if let Some(texts) = &self.texts
            && texts.try_send(text).is_err()
        {
            note(&self.failure, "nobody reads it");
        }
    }

    /// Show a text, and wait if too many are waiting.
    pub fn print(&self, text: &str) {
        if let Some(texts) = &self.texts
            && texts.send(text.to_owned()).is_err()
        {
            note(&self.failure, "its thread has ended");
        }
    }

    /// What went wrong since the last call.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().expect("nobody panics with it").take()
    }
}

impl Drop for Console {
    /// Wait until everything is written, so that an error message comes after it.
    fn drop(&mut self) {
        self.texts = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Remember what went wrong first.
fn note(failure: &Mutex<Option<String>>, why: &str) {
    let mut failure = failure.lock().expect("nobody panics with it");
    failure.get_or_insert_with(|| format!("standard output: {why}"));
}

fn write_all(texts: &Receiver<String>, failure: &Mutex<Option<String>>) {
    let mut patience = PATIENCE;
    for text in texts {
        patience = match write(&text, patience) {
            Ok(()) => PATIENCE,
            Err(error) => {
                note(failure, &error.to_string());
                // Whoever is gone may come back, but is not waited for again.
                Duration::ZERO
            }
        };
    }
}

/// Write a text, with styles only where they are wanted.
fn write(text: &str, patience: Duration) -> std::io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    let (mut rest, began) = (text.as_bytes(), Instant::now());
    while !rest.is_empty() {
        let written = stdout.write(rest).and_then(|count| match count {
            0 => Err(ErrorKind::WriteZero.into()),
            count => Ok(count),
        });
        match written {
            Ok(count) => rest = &rest[count..],
            Err(error) => wait(error, began, patience)?,
        }
    }
    while let Err(error) = stdout.flush() {
        wait(error, began, patience)?;
    }
    Ok(())
}

/// Give an output that is full, but does not block, some time.
fn wait(error: std::io::Error, began: Instant, patience: Duration) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock if began.elapsed() < patience => {
            std::thread::sleep(Duration::from_millis(10));
            Ok(())
        }
        _ => Err(error),
    }
}

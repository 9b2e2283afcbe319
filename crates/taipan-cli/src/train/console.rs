//! The output of a run. It never fails and, during training, never blocks: a terminal that is
//! closed or stopped by Ctrl-S, a pipe that nobody reads and a log on a full disk do not affect the
//! training.

use std::io::{ErrorKind, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Texts that are queued for a slow reader; more are dropped.
const QUEUE: usize = 1000;
/// How long a full, non-blocking output is retried before a text is dropped.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Standard output, written by a thread of its own.
pub struct Console {
    /// The queue, and the thread that writes what is in it.
    writer: Option<(SyncSender<String>, JoinHandle<()>)>,
    /// The first failure, until it is taken.
    failure: Arc<Mutex<Option<String>>>,
}

impl Console {
    pub fn new() -> Console {
        let (texts, queued) = sync_channel(QUEUE);
        let failure = Arc::new(Mutex::new(None));
        let shared = failure.clone();
        let writer = std::thread::spawn(move || write_all(&queued, &shared));
        Console { writer: Some((texts, writer)), failure }
    }

    /// Print a text, or drop it if the queue is full.
    pub fn try_print(&self, text: String) {
        if let Some((texts, _)) = &self.writer
            && texts.try_send(text).is_err()
        {
            record(&self.failure, "nobody reads it");
        }
    }

    /// Print a text, and wait while the queue is full.
    pub fn print(&self, text: &str) {
        if let Some((texts, _)) = &self.writer
            && texts.send(text.to_owned()).is_err()
        {
            record(&self.failure, "its thread has ended");
        }
    }

    /// The first failure since the last call.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().expect("nobody panics with it").take()
    }
}

impl Drop for Console {
    /// Wait until everything is written, so that an error message comes after it.
    fn drop(&mut self) {
        if let Some((texts, writer)) = self.writer.take() {
            drop(texts);
            let _ = writer.join();
        }
    }
}

/// Record a failure, if it is the first.
fn record(failure: &Mutex<Option<String>>, why: &str) {
    let mut failure = failure.lock().expect("nobody panics with it");
    failure.get_or_insert_with(|| format!("standard output: {why}"));
}

fn write_all(texts: &Receiver<String>, failure: &Mutex<Option<String>>) {
    let mut timeout = TIMEOUT;
    for text in texts {
        timeout = match write(&text, timeout) {
            Ok(()) => TIMEOUT,
            Err(error) => {
                record(failure, &error.to_string());
                // The reader may come back, but is not waited for again.
                Duration::ZERO
            }
        };
    }
}

/// Write a text, with styles only where they are wanted.
fn write(text: &str, timeout: Duration) -> std::io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    let (mut rest, began) = (text.as_bytes(), Instant::now());
    while !rest.is_empty() {
        let written = stdout.write(rest).and_then(|count| match count {
            0 => Err(ErrorKind::WriteZero.into()),
            count => Ok(count),
        });
        match written {
            Ok(count) => rest = &rest[count..],
            Err(error) => wait(error, began, timeout)?,
        }
    }
    while let Err(error) = stdout.flush() {
        wait(error, began, timeout)?;
    }
    Ok(())
}

/// Wait for an output that is full and does not block.
fn wait(error: std::io::Error, began: Instant, timeout: Duration) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock if began.elapsed() < timeout => {
            std::thread::sleep(Duration::from_millis(10));
            Ok(())
        }
        _ => Err(error),
    }
}

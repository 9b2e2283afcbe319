//! Lines of a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::harness::Harness;

/// A program on a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let (mut master, mut slave) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: the call writes two file descriptors to places that outlive it, and takes null
        // for the rest.
        let opened = unsafe {
            libc::openpty(&mut master, &mut slave, none, none as *const _, none as *const _)
        };
        assert_eq!(opened, 0);
        // SAFETY: a plain call on a file descriptor that is open. The program is not to have it.
        assert_eq!(unsafe { libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
        // SAFETY: the two are open and nobody else's.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let terminal = slave.as_raw_fd();
        // SAFETY: between fork and exec only these two calls are made, and both may be made there.
        unsafe {
            command.pre_exec(move || {
                // Ctrl-C reaches the session that has this terminal.
                let led = libc::setsid() >= 0 && libc::ioctl(terminal, libc::TIOCSCTTY, 0) == 0;
                if led { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        command.env("TERM", "xterm").stdin(slave.try_clone().unwrap());
        command.stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = command.spawn().expect("the program was built");
        drop(command);
        let (sender, screen) = channel();
        let mut reader = master.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut block = [0; 4096];
            // A terminal whose program has ended gives an error.
            while let Ok(count @ 1..) = reader.read(&mut block) {
                if sender.send(block[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal { child, keyboard: master, screen, shown: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Wait until the screen shows this, after what was waited for before; returns what came before
    /// it.
    fn wait_for(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                let mut before = std::mem::replace(&mut self.shown, rest);
                before.truncate(at);
                return before;
            }
            match self.screen.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(_) => assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "{text:?} does not come: {:?}",
                    self.shown
                ),
            }
        }
    }

    fn end(mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            if began.elapsed() > Duration::from_secs(60) {
                self.child.kill().unwrap();
                panic!("it does not end: {:?}", self.shown);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn lines_are_continued_and_history_brings_them_back() {
    let harness = Harness::new("lines");
    let flags = ["-n", "30", "--ignore-eos", "--temperature", "0", "--stop", "no such text"];
    let text = harness.json(&[&flags[..], &["--prompt", "hello"]].concat())[0]["text"].clone();
    let mut terminal = Terminal::start(harness.generate(&flags));
    terminal.wait_for("> ");
    terminal.press("hello\r");
    let first = terminal.wait_for("prompt 6 tokens in ");
    terminal.wait_for("> ");
    // Up, and Enter.
    terminal.press("\x1b[A\r");
    let second = terminal.wait_for("prompt 6 tokens in ");
    for shown in [&first, &second] {
        assert!(shown.contains("hello"), "{shown:?}");
        // Bytes that would control the terminal are shown as signs; a line end as one.
        let plain: String = text
            .as_str()
            .unwrap()
            .chars()
            .map(|c| if c.is_control() && !"\n\t".contains(c) { '\u{fffd}' } else { c })
            .collect();
        assert!(shown.contains(&plain.replace('\n', "\r\n")), "{shown:?}, expected {plain:?}");
    }
    terminal.wait_for("> ");
    terminal.press("\x04");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn ctrl_c_stops_a_text_and_then_the_program() {
    let harness = Harness::new("ctrl-c");
    let mut terminal = Terminal::start(harness.generate(&["-n", "1000000000", "--ignore-eos"]));
    terminal.wait_for("> ");
    for _ in 0..2 {
        terminal.press("endless\r");
        terminal.wait_for("endless");
        std::thread::sleep(Duration::from_millis(300));
        terminal.press("\x03");
        terminal.wait_for(" generated in ");
        terminal.wait_for("> ");
    }
    terminal.press("\x03");
    assert_eq!(terminal.end(), Some(130));
}

#[test]
fn what_needs_a_prompt_says_so() {
    let harness = Harness::new("needs-prompt");
    for flag in [&["--json"][..], &["--batch", "2"], &["--save-state", "state"]] {
        let mut terminal = Terminal::start(harness.generate(flag));
        terminal.wait_for(&format!("{} needs a prompt, expected --prompt", flag[0]));
        assert_eq!(terminal.end(), Some(2));
    }
}

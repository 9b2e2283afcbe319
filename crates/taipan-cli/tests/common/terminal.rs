//! A program in a terminal: what it writes, and what a person sees on the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Rows of every screen.
const ROWS: u16 = 50;
/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A program on a terminal of its own.
pub struct Terminal {
    child: Child,
    keyboard: File,
    output: Receiver<Vec<u8>>,
    /// What came since the last text that was waited for.
    shown: String,
    screen: vt100::Parser,
}

impl Terminal {
    /// Start a program in a terminal of so many columns.
    pub fn start(mut command: Command, columns: u16) -> Terminal {
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
        set_size(&master, columns);
        let terminal = slave.as_raw_fd();
        // SAFETY: between fork and exec only these two calls are made, and both may be made there.
        unsafe {
            command.pre_exec(move || {
                // Ctrl-C reaches the session that has this terminal.
                let led = libc::setsid() >= 0 && libc::ioctl(terminal, libc::TIOCSCTTY, 0) == 0;
                if led { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
            command.env_remove(variable);
        }
        command.env("TERM", "xterm").stdin(slave.try_clone().unwrap());
        command.stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = command.spawn().expect("the program was built");
        drop(command);
        let (sender, output) = channel();
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
        let screen = screen(columns);
        Terminal { child, keyboard: master, output, shown: String::new(), screen }
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Wait until the program has written this, after what was waited for before; returns what came
    /// before it.
    pub fn wait_for(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                let mut before = std::mem::replace(&mut self.shown, rest);
                before.truncate(at);
                return before;
            }
            if !self.read() {
                assert!(began.elapsed() < LIMIT, "{text:?} does not come: {:#?}", self.lines());
            }
        }
    }

    /// Take what the program writes; false if it wrote nothing for a while.
    fn read(&mut self) -> bool {
        let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(100)) else { return false };
        self.shown += &String::from_utf8_lossy(&bytes);
        self.screen.process(&bytes);
        true
    }

    /// Give the window another width. As terminals do, it breaks lines that have become too long
    /// for it.
    pub fn resize(&mut self, columns: u16) {
        // What it has drawn for the old width comes first.
        self.signal(libc::SIGSTOP);
        while self.read() {}
        let before = self.screen.screen().contents();
        self.screen = screen(columns);
        self.screen.process(before.replace('\n', "\r\n").as_bytes());
        set_size(&self.keyboard, columns);
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a plain call; the child has not been waited for, so that the number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    /// The lines that a person sees, without trailing spaces and empty lines.
    pub fn lines(&self) -> Vec<String> {
        let contents = self.screen.screen();
        let (_, columns) = contents.size();
        let rows = contents.rows(0, columns.get());
        let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        while rows.pop_if(|row| row.is_empty()).is_some() {}
        rows
    }

    /// The colour of what is at the beginning of a line.
    pub fn colour(&self, line: usize) -> vt100::Color {
        self.screen.screen().cell(line as u16, 0).expect("a line of the screen").fgcolor()
    }

    /// Wait for the end of the program, and return its exit code.
    pub fn end(&mut self) -> Option<i32> {
        let began = Instant::now();
        let status = loop {
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > LIMIT {
                self.child.kill().unwrap();
                panic!("it does not end: {:#?}", self.lines());
            }
        };
        while self.read() {}
        status.code()
    }
}

/// An empty screen.
fn screen(columns: u16) -> vt100::Parser {
    let size = |count| NonZeroU16::new(count).expect("a screen is not empty");
    vt100::Parser::new(size(ROWS), size(columns), 0)
}

fn set_size(terminal: &File, columns: u16) {
    let size = libc::winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads a size that outlives it.
    let set = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    assert_eq!(set, 0);
}

//! Lines of a terminal.

use std::time::Duration;

use crate::harness::Harness;
use crate::terminal::Terminal;

#[test]
fn lines_are_continued_and_history_brings_them_back() {
    let harness = Harness::new("lines");
    let flags = ["-n", "30", "--ignore-eos", "--temperature", "0", "--stop", "no such text"];
    let text = harness.json(&[&flags[..], &["--prompt", "hello"]].concat())[0]["text"].clone();
    let mut terminal = Terminal::start(harness.generate(&flags), 80);
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
    let mut terminal = Terminal::start(harness.generate(&["-n", "1000000000", "--ignore-eos"]), 80);
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
        let mut terminal = Terminal::start(harness.generate(flag), 80);
        terminal.wait_for(&format!("{} needs a prompt, expected --prompt", flag[0]));
        assert_eq!(terminal.end(), Some(2));
    }
}

//! The tests of a file, for a page to call: their number, their names, and each by its index.

extern crate test;

use std::cell::RefCell;

use test::{TestDescAndFn, TestFn};

#[link(wasm_import_module = "./tests.js")]
unsafe extern "C" {
    /// Take a text: the name of a test, or why it failed.
    fn report(text: *const u8, len: usize);
}

thread_local! {
    static TESTS: RefCell<Vec<(String, fn() -> Result<(), String>)>> = const { RefCell::new(Vec::new()) };
}

/// Keep the tests, instead of running them.
pub(crate) fn list(tests: &[&TestDescAndFn]) {
    std::panic::set_hook(Box::new(|panic| say(&panic.to_string())));
    let own = tests.iter().filter(|test| !test.desc.ignore).map(|test| match test.testfn {
        TestFn::StaticTestFn(run) => (test.desc.name.to_string(), run),
        _ => unreachable!("`#[test]` makes static tests"),
    });
    TESTS.set(own.collect());
}

fn say(text: &str) {
    // SAFETY: the callee reads `len` bytes, which are there until it returns.
    unsafe { report(text.as_ptr(), text.len()) }
}

/// Find the tests.
#[unsafe(no_mangle)]
extern "C" fn tests() -> usize {
    crate::start();
    TESTS.with_borrow(Vec::len)
}

/// Report the name of a test.
#[unsafe(no_mangle)]
extern "C" fn test_name(index: usize) {
    TESTS.with_borrow(|tests| say(&tests[index].0));
}

/// Run a test, which traps if it fails.
#[unsafe(no_mangle)]
extern "C" fn run_test(index: usize) {
    let run = TESTS.with_borrow(|tests| tests[index].1);
    run().unwrap_or_else(|why| panic!("{why}"));
}

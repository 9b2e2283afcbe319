//! Whether the current thread records what it computes for backward.

use std::cell::Cell;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(true) };
}

/// Whether it does.
pub(crate) fn is_on() -> bool {
    ON.get()
}

/// Run `f` with recording on or off.
pub(crate) fn set_for<R>(on: bool, f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ON.set(self.0);
        }
    }
    let _restore = Restore(ON.replace(on));
    f()
}

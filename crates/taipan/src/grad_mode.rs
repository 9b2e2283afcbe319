//! Grad mode: whether operations of the current thread are added to the graph.

use std::cell::Cell;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether grad mode is enabled.
pub(crate) fn is_enabled() -> bool {
    ENABLED.get()
}

/// Run `f` with grad mode enabled or disabled.
pub(crate) fn with<R>(enabled: bool, f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ENABLED.set(self.0);
        }
    }
    let _restore = Restore(ENABLED.replace(enabled));
    f()
}

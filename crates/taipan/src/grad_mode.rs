//! Grad mode: whether operations of the current thread are added to the graph.

use std::cell::Cell;

/// What operations are run for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum GradMode {
    /// Gradients: they are added to the graph.
    Enabled,
    /// Gradients, for which backward runs them again: they are not added to the graph.
    Recomputed,
    /// Their results alone.
    Disabled,
}

thread_local! {
    static MODE: Cell<GradMode> = const { Cell::new(GradMode::Enabled) };
}

/// The mode of this thread.
pub(crate) fn current() -> GradMode {
    MODE.get()
}

/// Whether operations are added to the graph.
pub(crate) fn is_enabled() -> bool {
    current() == GradMode::Enabled
}

/// Run `f` in a mode.
pub(crate) fn with<R>(mode: GradMode, f: impl FnOnce() -> R) -> R {
    let _guard = ModeGuard::set(mode);
    f()
}

/// Restores the mode of this thread when it is dropped.
pub(crate) struct ModeGuard(GradMode);

impl ModeGuard {
    /// Set the mode until then.
    pub(crate) fn set(mode: GradMode) -> ModeGuard {
        ModeGuard(MODE.replace(mode))
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        MODE.set(self.0);
    }
}

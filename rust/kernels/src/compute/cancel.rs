//! Cancelling a computation.

use ropechat_platform::error::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A flag that ends a computation between two layers. Set once; each request has a new token.
#[derive(Debug, Default)]
pub struct CancelToken {
    cancelled: AtomicBool,
    /// Checks until the token sets itself; 0 for a token that only others set.
    fuse: AtomicUsize,
}

impl CancelToken {
    /// A token that sets itself at its `n`-th check, for tests that cancel at an exact place.
    #[doc(hidden)]
    pub fn at_check(n: usize) -> Self {
        Self { cancelled: AtomicBool::new(false), fuse: AtomicUsize::new(n) }
    }

    /// Asks the computation to end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the computation was asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Called by the computation at the places where it can end.
    ///
    /// # Errors
    /// Cancelled.
    pub fn check(&self) -> Result<()> {
        let fuse = self.fuse.load(Ordering::Relaxed);
        if fuse > 0 {
            self.fuse.store(fuse - 1, Ordering::Relaxed);
            if fuse == 1 {
                self.cancel();
            }
        }
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

//! What the pool is made of: the standard library's parts, or those of loom, which runs a test in every order of its steps
//! (`rust/kernels/loom`).

#[cfg(loom)]
pub use loom::{
    sync::atomic::{AtomicPtr, AtomicU64, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread, current, park, yield_now},
};
#[cfg(not(loom))]
pub use ropechat_platform::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
pub use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub use std::{
    sync::Arc,
    sync::atomic::{AtomicPtr, AtomicU64, fence},
    thread::{Builder, JoinHandle, Thread, current, park, yield_now},
};

/// Turns of the spin loop before a worker parks: with [`turn`] a fraction of a millisecond, longer than any pause within a
/// token.
#[cfg(not(loom))]
pub const SPINS: u32 = 2_048;
#[cfg(loom)]
pub const SPINS: u32 = 0;

/// One turn of waiting: the longer it has taken, the less often the word is read, and the more often the core is yielded.
#[cfg(not(loom))]
pub fn turn(turns: &mut u32) {
    const SHORT: u32 = 512;
    *turns = turns.saturating_add(1);
    match *turns {
        ..=SHORT => std::hint::spin_loop(),
        many if many.is_multiple_of(8) => yield_now(),
        _ => (0..8).for_each(|_| std::hint::spin_loop()),
    }
}
#[cfg(loom)]
pub fn turn(_: &mut u32) {
    yield_now();
}

/// The lock, also after a panic of its holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A word that threads share. A test counts how often such words go from one core to another.
pub trait Word: Send + Sync + 'static {
    /// A word with this value.
    fn new(value: u64) -> Self;
    /// See [`AtomicU64`].
    fn load(&self, order: Ordering) -> u64;
    /// See [`AtomicU64`].
    fn store(&self, value: u64, order: Ordering);
    /// Replaces `old` by `new`, with Acquire; what is there instead, if it is not `old` (or not always, if it is).
    fn replace(&self, old: u64, new: u64) -> Result<(), u64>;
    /// Adds and wraps.
    fn add(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        AtomicU64::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        self.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed).map(|_| ())
    }

    fn add(&self, value: u64, order: Ordering) {
        self.fetch_add(value, order);
    }
}

#[cfg(not(loom))]
std::thread_local! {
    /// Whether this thread is doing a part of a job, and the pool whose turn it has.
    static STATE: std::cell::Cell<(bool, usize)> = const { std::cell::Cell::new((false, 0)) };
}
#[cfg(loom)]
loom::thread_local! {
    static STATE: std::cell::Cell<(bool, usize)> = std::cell::Cell::new((false, 0));
}

/// Whether this thread is doing a part of a job.
pub fn is_in_job() -> bool {
    STATE.with(|state| state.get().0)
}

/// From now on it is, or not.
pub fn set_in_job(is: bool) {
    STATE.with(|state| state.set((is, state.get().1)));
}

/// The pool whose turn this thread has: its address, or 0.
pub fn turn_of() -> usize {
    STATE.with(|state| state.get().1)
}

/// From now on it is this pool's.
pub fn set_turn_of(pool: usize) {
    STATE.with(|state| state.set((state.get().0, pool)));
}

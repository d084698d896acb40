//! Locks for ThreadSanitizer: those of the standard library are compiled without it, so it does not see who waited for whom.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LockResult, TryLockResult};

#[derive(Default)]
pub struct Mutex<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only accessed by the thread that has the lock.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self { is_locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        while self.is_locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(MutexGuard(self))
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        Ok(self.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

pub struct MutexGuard<'a, T>(&'a Mutex<T>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
    }
}

#[derive(Default)]
pub struct Condvar;

impl Condvar {
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let mutex = guard.0;
        drop(guard);
        std::thread::yield_now();
        mutex.lock()
    }

    pub fn notify_all(&self) {}
}

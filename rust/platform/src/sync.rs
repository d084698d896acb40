//! Locks: those of the standard library.
//!
//! It is compiled without ThreadSanitizer, which therefore does not see who waited for whom. With `--cfg tsan` (`make tsan`) each
//! lock has a word beside it, written before a thread gives the lock up and read once the next one has it.

#[cfg(tsan)]
pub use seen::{Condvar, Mutex, MutexGuard};
#[cfg(not(tsan))]
pub use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(tsan)]
#[allow(missing_docs)] // those of the standard library are true of these
mod seen {
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub struct Mutex<T> {
        mutex: sync::Mutex<T>,
        word: AtomicBool,
    }

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Self { mutex: sync::Mutex::new(value), word: AtomicBool::new(false) }
        }

        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            map(self.mutex.lock(), |guard| MutexGuard::new(guard, &self.word))
        }

        pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            match self.mutex.try_lock() {
                Ok(guard) => Ok(MutexGuard::new(guard, &self.word)),
                Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
                Err(TryLockError::Poisoned(error)) => {
                    let guard = MutexGuard::new(error.into_inner(), &self.word);
                    Err(TryLockError::Poisoned(PoisonError::new(guard)))
                }
            }
        }

        pub fn get_mut(&mut self) -> LockResult<&mut T> {
            self.mutex.get_mut()
        }
    }

    pub struct MutexGuard<'a, T> {
        /// None while a condition variable has it.
        guard: Option<sync::MutexGuard<'a, T>>,
        word: &'a AtomicBool,
    }

    impl<'a, T> MutexGuard<'a, T> {
        fn new(guard: sync::MutexGuard<'a, T>, word: &'a AtomicBool) -> Self {
            word.load(Ordering::Acquire);
            Self { guard: Some(guard), word }
        }

        fn give_up(mut self) -> (sync::MutexGuard<'a, T>, &'a AtomicBool) {
            self.word.store(true, Ordering::Release);
            (self.guard.take().expect("only this takes it"), self.word)
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.guard.as_ref().expect("it is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("it is held")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            if self.guard.is_some() {
                self.word.store(true, Ordering::Release);
            }
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(sync::Condvar);

    impl Condvar {
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let (guard, word) = guard.give_up();
            map(self.0.wait(guard), |guard| MutexGuard::new(guard, word))
        }

        pub fn wait_timeout_while<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            at_most: Duration,
            mut goes_on: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            let (guard, word) = guard.give_up();
            let waited = self.0.wait_timeout_while(guard, at_most, |value| {
                word.load(Ordering::Acquire);
                let goes_on = goes_on(value);
                word.store(true, Ordering::Release);
                goes_on
            });
            map(waited, |(guard, result)| (MutexGuard::new(guard, word), result))
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    fn map<A, B>(result: LockResult<A>, with: impl FnOnce(A) -> B) -> LockResult<B> {
        match result {
            Ok(value) => Ok(with(value)),
            Err(error) => Err(PoisonError::new(with(error.into_inner()))),
        }
    }
}

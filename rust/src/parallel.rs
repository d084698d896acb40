//! The thread pool: static shares, spin briefly, then park.
//!
//! Work is split over output rows, heads and query rows only, never over the sum behind one value, so the number of
//! threads cannot change a result (law 1). A forward pass is a chain of short [`Pool::run`]s; between them the workers
//! spin (a wake through the kernel costs about as much as a small layer), and after [`SPINS`] idle turns they park, so
//! an idle engine uses no CPU.

use crate::error::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Idle turns of the spin loop before a worker parks: some tens of microseconds, longer than any gap within a token.
const SPINS: u32 = 20_000;
/// Turns after which a waiting thread offers its core to others: a busy machine must not deadlock politely.
const SPINS_BEFORE_YIELD: u32 = 4_000;

/// A flag that ends a computation between two layers. Set once; a new request takes a new token.
#[derive(Debug, Default)]
pub struct CancelToken {
    cancelled: AtomicBool,
    /// Checks that pass before the token sets itself; 0 for a token that only others set.
    fuse: AtomicUsize,
}

impl CancelToken {
    /// A token that sets itself at its `n`-th check: how tests cancel at an exact place.
    pub fn at_check(n: usize) -> Self {
        Self { cancelled: AtomicBool::new(false), fuse: AtomicUsize::new(n) }
    }

    /// Asks the computation to end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Called by the computation where it can end.
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

/// A job for all threads: called once per thread with the thread's index.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// The current job; valid while `pending > 0`.
    job: Mutex<Option<&'static Job<'static>>>,
    /// Counts jobs; a worker that sees a new number takes the job.
    epoch: AtomicUsize,
    /// Workers that have not finished the current job.
    pending: AtomicUsize,
    stop: AtomicBool,
    parked: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A fixed set of threads, of which the caller of [`Pool::run`] is one.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    running: Mutex<()>,
    /// Threads do not survive fork(2): the process that started them.
    process: u32,
}

impl Pool {
    /// `threads` threads, the caller included; at least one.
    pub fn new(threads: usize) -> Self {
        let count = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            job: Mutex::new(None),
            epoch: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            parked: (0..count).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        // A thread that the system refuses is done without: fewer threads, same results.
        let workers = (0..count)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("ropechat-{}", index + 1);
                std::thread::Builder::new().name(name).spawn(move || work(&shared, index)).ok()
            })
            .collect();
        Self { shared, workers, running: Mutex::new(()), process: std::process::id() }
    }

    /// Threads that take part in a job.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Whether this process started the threads (false in the child of a fork, which must make a new pool).
    pub fn is_alive(&self) -> bool {
        self.process == std::process::id()
    }

    /// Calls `job(0..threads)`, each on its own thread, and returns when all are done.
    ///
    /// # Panics
    /// Re-raises a panic of any of the calls, after all have ended.
    pub fn run(&self, job: &Job<'_>) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _one_at_a_time = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime changes; `run` does not return, nor unwind, before every worker has dropped the
        // reference (pending == 0 below), so it never outlives `job`.
        let lasting = unsafe { std::mem::transmute::<&Job<'_>, &'static Job<'static>>(job) };
        *lock(&self.shared.job) = Some(lasting);
        self.shared.pending.store(self.workers.len(), Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (parked, worker) in self.shared.parked.iter().zip(&self.workers) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut turns = 0;
        while self.shared.pending.load(Ordering::Acquire) > 0 {
            turns += 1;
            if turns < SPINS_BEFORE_YIELD { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        if let Some(panic) = lock(&self.shared.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Calls `each(item, thread)` for every item; a thread that is done takes the next item.
    pub fn for_each<T: Send>(&self, items: &mut [T], each: impl Fn(&mut T) + Sync) {
        if items.len() <= 1 || self.workers.is_empty() {
            return items.iter_mut().for_each(each);
        }
        let next = AtomicUsize::new(0);
        let cells: Vec<Mutex<&mut T>> = items.iter_mut().map(Mutex::new).collect();
        self.run(&|_| {
            while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                each(&mut lock(cell));
            }
        });
    }

    /// The share of thread `index` in `0..count` when it is cut into contiguous parts.
    pub fn share(&self, count: usize, index: usize) -> std::ops::Range<usize> {
        let threads = self.threads();
        count * index / threads..count * (index + 1) / threads
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.is_alive() {
            // The threads exist in the parent only; joining them here would wait for ever.
            return std::mem::forget(std::mem::take(&mut self.workers));
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What worker `index` does for life.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = match wait_for_job(shared, index, seen) {
            Some(epoch) => epoch,
            None => return,
        };
        let job = *lock(&shared.job);
        if let Some(job) = job
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(index + 1)))
        {
            *lock(&shared.panic) = Some(panic);
        }
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

/// Spins, then parks, until there is a job newer than `seen`; None when the pool ends.
fn wait_for_job(shared: &Shared, index: usize, seen: usize) -> Option<usize> {
    let mut turns = 0;
    loop {
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            return Some(epoch);
        }
        if shared.stop.load(Ordering::SeqCst) {
            return None;
        }
        turns += 1;
        if turns < SPINS {
            std::hint::spin_loop();
            continue;
        }
        // Announce, look once more, then sleep: `run` bumps the epoch before it looks at `parked`.
        shared.parked[index].store(true, Ordering::SeqCst);
        if shared.epoch.load(Ordering::SeqCst) == seen && !shared.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        shared.parked[index].store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_once_per_job_also_after_parking() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        for round in 0..200 {
            pool.run(&|index| {
                count.fetch_add(1 << (8 * index), Ordering::Relaxed);
            });
            assert_eq!(count.swap(0, Ordering::Relaxed), 0x010101);
            if round % 50 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }

    #[test]
    fn for_each_touches_every_item() {
        for threads in 1..4 {
            let mut items: Vec<usize> = (0..97).collect();
            Pool::new(threads).for_each(&mut items, |item| *item += 1);
            assert!(items.iter().enumerate().all(|(i, &item)| item == i + 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for culprit in 0..2 {
            let result = catch_unwind(AssertUnwindSafe(|| pool.run(&|index| assert_ne!(index, culprit))));
            assert!(result.is_err());
            pool.run(&|_| ());
        }
    }

    #[test]
    fn shares_cover_everything() {
        let pool = Pool::new(3);
        let all: Vec<usize> = (0..3).flat_map(|index| pool.share(10, index)).collect();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }
}

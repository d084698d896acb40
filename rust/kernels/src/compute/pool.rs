//! The thread pool: contiguous shares, stealing, spin briefly, then park.
//!
//! Work is split over output rows, heads and query rows only, never over the sum behind one value, so neither the number
//! of threads nor which thread does a part can change a result (law 1). A forward pass is a chain of short [`Pool::run`]s;
//! between them the workers spin (a wake-up by the system costs about as much as a small layer), and after [`SPINS`]
//! idle turns they park, so an idle engine uses no CPU.
//!
//! Nobody waits for a worker that the system has not scheduled: a job is open while it has parts left, a worker in time
//! takes parts (first its own contiguous share, then those that others have not begun), and a late one finds the job
//! closed. So other programs slow down a forward pass by the cores that they use, not by their time slices.

use crate::compute::phases::{Phase, within};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Idle turns of the spin loop before a worker parks: a fraction of a millisecond, longer than any pause within a token.
const SPINS: u32 = 10_000;
/// Turns after which a waiting thread yields its core now and then.
const SPINS_BEFORE_YIELD: u32 = 512;

/// A job: called once per part.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// The gate's fields: jobs so far, whether the current one is open, workers inside it.
const EPOCH: u32 = 32;
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

/// The current job as a pointer: the job lives until [`Pool::run`] returns, and a reference would promise more.
#[derive(Clone, Copy)]
struct JobPointer(*const Job<'static>);

// SAFETY: a job is Sync, so any thread may call it; who dereferences the pointer must know that the job is alive.
unsafe impl Send for JobPointer {}

thread_local! {
    /// Whether this thread is doing a part of a job.
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
}

struct Shared {
    gate: AtomicU64,
    /// Set while [`Pool::run`] runs; read only by those inside the gate.
    job: Mutex<Option<JobPointer>>,
    /// One contiguous share of the parts per thread.
    shares: Vec<Share>,
    stop: AtomicBool,
    parked: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The parts `next..end` of a share; on its own cache lines, because all threads write to it.
#[derive(Default)]
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
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
            gate: AtomicU64::new(0),
            job: Mutex::new(None),
            shares: (0..=count).map(|_| Share::default()).collect(),
            stop: AtomicBool::new(false),
            parked: (0..count).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        // When the system refuses a thread, the pool works without it: fewer threads, same results.
        let workers = (0..count)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("ropechat-{}", index + 1);
                std::thread::Builder::new().name(name).spawn(move || work(&shared, index)).ok()
            })
            .collect();
        Self { shared, workers, running: Mutex::new(()), process: std::process::id() }
    }

    /// Threads that work on a job.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Whether this process started the threads. False in the child of a fork, which must make a new pool.
    pub fn is_alive(&self) -> bool {
        self.process == std::process::id()
    }

    /// Calls `job(part)` once for every part in `0..parts`, on any thread, and returns when all are done.
    ///
    /// # Panics
    /// Re-raises a panic of one of the calls, after all have ended. Panics when a job with more than one part is run from
    /// inside a job: it would wait for the job that it is a part of.
    pub fn run(&self, parts: usize, job: &Job<'_>) {
        if self.workers.is_empty() || parts <= 1 {
            return (0..parts).for_each(job);
        }
        assert!(!IN_JOB.get(), "a job of a pool must not run another one");
        let _one_at_a_time = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime of a pointer changes, and a pointer promises none.
        let pointer = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        *lock(&self.shared.job) = Some(JobPointer(pointer));
        let threads = self.threads();
        for (index, share) in self.shared.shares.iter().enumerate().take(threads) {
            share.next.store(parts * index / threads, Ordering::Relaxed);
            share.end.store(parts * (index + 1) / threads, Ordering::Relaxed);
        }
        let epoch = (self.shared.gate.load(Ordering::Relaxed) >> EPOCH) + 1;
        self.shared.gate.store(epoch << EPOCH | OPEN, Ordering::SeqCst);
        for (parked, worker) in self.shared.parked.iter().zip(&self.workers) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        IN_JOB.set(true);
        let mine = catch_unwind(AssertUnwindSafe(|| self.shared.take_parts(0, threads, job)));
        IN_JOB.set(false);
        self.shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        within(Phase::Wait, || {
            let mut turns = 0;
            while self.shared.gate.load(Ordering::Acquire) & INSIDE > 0 {
                pause(&mut turns);
            }
        });
        *lock(&self.shared.job) = None;
        // Taken even if this thread panicked: a later job must not find it.
        let others = lock(&self.shared.panic).take();
        if let Some(panic) = mine.err().or(others) {
            resume_unwind(panic);
        }
    }

    /// Whether a job is kept after its end: a pointer to what is gone. For tests.
    #[doc(hidden)]
    pub fn holds_a_job(&self) -> bool {
        lock(&self.shared.job).is_some()
    }

    /// Calls `each(item)` for every item.
    pub fn for_each<T: Send>(&self, items: &mut [T], each: impl Fn(&mut T) + Sync) {
        if items.len() <= 1 || self.workers.is_empty() {
            return items.iter_mut().for_each(each);
        }
        let cells: Vec<Mutex<&mut T>> = items.iter_mut().map(Mutex::new).collect();
        self.run(cells.len(), &|part| each(&mut lock(&cells[part])));
    }
}

impl Shared {
    /// Does parts until none is left: those of its own share first, in order, then those of others.
    fn take_parts(&self, own: usize, threads: usize, job: &Job<'_>) {
        for share in (0..threads).map(|i| &self.shares[(own + i) % threads]) {
            let end = share.end.load(Ordering::Relaxed);
            loop {
                let part = share.next.fetch_add(1, Ordering::Relaxed);
                if part >= end {
                    break;
                }
                job(part);
            }
        }
    }
}

/// One turn of waiting: spins, and now and then yields the core.
fn pause(turns: &mut u32) {
    *turns += 1;
    if *turns > SPINS_BEFORE_YIELD && turns.is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.is_alive() {
            // The threads exist in the parent only; joining them here would never return.
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

/// The loop of worker `index`.
fn work(shared: &Shared, index: usize) {
    IN_JOB.set(true); // this thread does nothing else
    let mut seen = 0;
    while let Some(epoch) = enter_next_job(shared, index, seen) {
        seen = epoch;
        let job = *lock(&shared.job);
        if let Some(JobPointer(job)) = job {
            // SAFETY: this thread is inside the gate, and `run` neither returns nor unwinds before the gate is shut and
            // empty: the job lives as long as this reference.
            let job = unsafe { &*job };
            let threads = shared.shares.len();
            let parts = || shared.take_parts(index + 1, threads, job);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(parts)) {
                *lock(&shared.panic) = Some(panic);
            }
        }
        shared.gate.fetch_sub(1, Ordering::Release);
    }
}

/// Waits (spins, then parks) until it is inside a job newer than `seen`; None when the pool ends.
fn enter_next_job(shared: &Shared, index: usize, mut seen: u64) -> Option<u64> {
    let mut turns = 0;
    loop {
        let gate = shared.gate.load(Ordering::SeqCst);
        let epoch = gate >> EPOCH;
        if epoch != seen {
            if gate & OPEN == 0 {
                seen = epoch; // too late
            } else if shared
                .gate
                .compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Some(epoch);
            }
            continue;
        }
        if shared.stop.load(Ordering::SeqCst) {
            return None;
        }
        if turns < SPINS {
            pause(&mut turns);
            continue;
        }
        // Announce, check once more, then sleep: `run` opens the gate before it checks `parked`.
        shared.parked[index].store(true, Ordering::SeqCst);
        let nothing_new = shared.gate.load(Ordering::SeqCst) >> EPOCH == seen;
        if nothing_new && !shared.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        shared.parked[index].store(false, Ordering::SeqCst);
        turns = 0;
    }
}

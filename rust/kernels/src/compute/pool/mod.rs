//! The thread pool: a share of the work per thread, taken in shrinking claims; spin briefly, then park.
//!
//! Work is split over output rows, heads and query rows only, never over the sum behind one value, so neither the number
//! of threads nor which thread does a part can change a result (law 1). A forward pass is a chain of short jobs; between
//! them the workers spin (a wake-up by the system costs about as much as a small layer), and after [`SPINS`] idle
//! turns they park, so an idle engine uses no CPU.
//!
//! A job has `units`, which are divided among the first threads in contiguous shares. A thread claims the units of its own
//! share from the front, then those at the end of others' shares. Nobody waits for a worker that the system has not
//! scheduled: others claim its units. The caller waits until all units are *done*: each worker counts those that it has
//! ever done in a word of its own, and the caller adds these words up.
//!
//! Nothing else is agreed on. The gate only says that there is something new; a worker that sees it late finds no units, or
//! claims some of a later job, which is as good: what the job is, it reads after the claim. So no word is tagged with a
//! job's number, and no word is written by all threads. A job of n threads costs each of them a fixed number of transfers
//! of cache lines between cores (`tests/pool.rs` counts them), and `loom/` tries all orders of these steps.

mod share;
#[doc(hidden)] // for tests
pub mod sync;
mod turns;

use crate::compute::phases::{self, Phase, within};
#[cfg(not(loom))]
use ropechat_platform::cores::{Core, stay_on};
use share::{Share, others};
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
#[cfg(not(loom))]
use std::sync::Weak;
use sync::{Arc, AtomicPtr, AtomicU64, Builder, JoinHandle, Mutex, Ordering, SPINS, Thread, Word};
use sync::{current, fence, is_in_job, lock, park, set_in_job, turn};
pub use turns::Turn;
use turns::Turns;

/// What a job does with a range of its items.
type Items<'a> = dyn Fn(Range<usize>) + Sync + 'a;

/// A job: what to do with units of `unit` items each, but for the last one of `items`.
struct Job<'a> {
    each: &'a Items<'a>,
    items: usize,
    unit: usize,
}

impl Job<'_> {
    fn do_units(&self, units: Range<u32>) {
        let end = (units.end as usize).saturating_mul(self.unit).min(self.items);
        (self.each)(units.start as usize * self.unit..end);
    }
}

/// The gate's word: the number of jobs so far, the threads of the last one, whether the pool ends.
const EPOCH: u32 = 32;
const STOP: u64 = 1 << 31;
const ACTIVE: u64 = STOP - 1;

/// What one thread writes, on cache lines of its own.
#[repr(align(128))]
struct Slot<W> {
    share: Share<W>,
    /// Units that this thread has ever done.
    done: W,
    /// Whether it is parked, or about to be.
    parked: W,
    thread: Mutex<Option<Thread>>,
}

/// What the caller writes and all workers read.
#[repr(align(128))]
struct Gate<W> {
    word: W,
    /// The last job. It is alive as long as one of its units is not done.
    job: AtomicPtr<Job<'static>>,
}

struct Shared<W> {
    gate: Gate<W>,
    /// Workers that are parked.
    sleepers: Sleepers<W>,
    /// One per thread, the caller's first.
    slots: Vec<Slot<W>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// What part of a job the threads before each get, and in the end all: sums of their cores' capacities.
    capacities: Vec<u64>,
}

#[repr(align(128))]
struct Sleepers<W>(W);

/// A fixed set of threads, of which the caller of [`Pool::run`] is one.
pub struct Pool<W: Word = AtomicU64> {
    shared: Arc<Shared<W>>,
    workers: Vec<JoinHandle<()>>,
    threads: usize,
    turns: Turns,
    /// Threads do not survive fork(2): the process that started them.
    process: u32,
}

impl Pool {
    /// `threads` threads, the caller included; at least one. Work is split for all of them; of threads beyond the processors
    /// that this process may use none is started, since they would only take each other's time.
    pub fn new(threads: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let mut pool = Self::oversubscribed(threads.min(processors));
        pool.threads = threads.max(1);
        pool
    }

    /// As [`Pool::new`], on these cores, the caller's first: each worker stays on its own, and gets a share of the work by
    /// its capacity. No more threads are started than there are cores.
    #[cfg(not(loom))]
    pub fn pinned(threads: usize, cores: &[Core]) -> Self {
        let cores = &cores[..threads.clamp(1, cores.len())];
        let capacities: Vec<u64> = cores.iter().map(|core| core.capacity.clamp(1, 1 << 24)).collect();
        let processors: Vec<usize> = cores.iter().map(|core| core.processor).collect();
        let mut pool = Self::of(&capacities, move |index| {
            stay_on(processors[index]);
        });
        pool.threads = threads.max(1);
        pool
    }

    /// A pool of so many threads that this process has already, or a `new` one: engines in one process share the cores. They
    /// use a pool in turns ([`Pool::turn`]).
    #[cfg(not(loom))]
    pub fn shared(threads: usize, new: impl Fn(usize) -> Self) -> Arc<Self> {
        static POOLS: Mutex<Vec<Weak<Pool>>> = Mutex::new(Vec::new());
        // A fork while another thread had this lock leaves it locked in the child.
        let Ok(mut pools) = POOLS.try_lock() else { return Arc::new(new(threads)) };
        pools.retain(|pool| pool.strong_count() > 0);
        let mut known = pools.iter().filter_map(Weak::upgrade);
        let found = known.find(|pool| pool.threads == threads && pool.is_alive());
        found.unwrap_or_else(|| {
            let pool = Arc::new(new(threads));
            pools.push(Arc::downgrade(&pool));
            pool
        })
    }
}

impl<W: Word> Pool<W> {
    /// So many threads, on however few processors.
    #[doc(hidden)] // for tests
    pub fn oversubscribed(threads: usize) -> Self {
        Self::of(&vec![1; threads.clamp(1, ACTIVE as usize)], |_| ())
    }

    /// A thread per capacity; each worker calls `begin` with its number first.
    fn of(capacities: &[u64], begin: impl Fn(usize) + Send + Sync + 'static) -> Self {
        let (threads, begin) = (capacities.len(), Arc::new(begin));
        let slot =
            || Slot { share: Share::empty(), done: W::new(0), parked: W::new(0), thread: Mutex::new(None) };
        let shared = Arc::new(Shared {
            gate: Gate { word: W::new(0), job: AtomicPtr::new(std::ptr::null_mut()) },
            sleepers: Sleepers(W::new(0)),
            slots: (0..threads).map(|_| slot()).collect(),
            panic: Mutex::new(None),
            capacities: (0..=threads).map(|index| capacities[..index].iter().sum()).collect(),
        });
        // When the system refuses a thread, the pool works without it: fewer threads, same results.
        let workers = (1..threads)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let begin = Arc::clone(&begin);
                let work = move || {
                    begin(index);
                    shared.work(index);
                };
                Builder::new().name(format!("ropechat-{index}")).spawn(work).ok()
            })
            .collect();
        let turns = Turns::default();
        Self { shared, workers, threads, turns, process: std::process::id() }
    }

    /// Threads that work is split for.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether this process started the threads. False in the child of a fork, which must make a new pool.
    pub fn is_alive(&self) -> bool {
        self.process == std::process::id()
    }

    /// Keeps the workers for the jobs of this thread until the turn is dropped: engines that share a pool use it in turns, a
    /// step each.
    pub fn turn(&self) -> Turn<'_> {
        self.turns.take(std::ptr::from_ref(self).addr())
    }

    /// Calls `job(part)` once for every part in `0..parts`, on any thread, and returns when all are done.
    ///
    /// # Panics
    /// As [`Pool::ranges`].
    pub fn run(&self, parts: usize, job: &(dyn Fn(usize) + Sync)) {
        self.ranges(parts, 1, &|parts| parts.for_each(job));
    }

    /// Calls `each(range)` for ranges that make up `0..items`, on any thread, and returns when all are done. `unit` items are
    /// worth a thread: ranges are multiples of it, but for the last one.
    ///
    /// # Panics
    /// Re-raises a panic of one of the calls, after all have ended. Panics when a job of more than one unit is run from
    /// inside a job: it would wait for the job that it is a part of.
    pub fn ranges(&self, items: usize, unit: usize, each: &Items<'_>) {
        let unit = unit.max(1).max(items.div_ceil(u32::MAX as usize));
        let units = items.div_ceil(unit) as u32;
        phases::job(units, || {
            if self.workers.is_empty() || units <= 1 {
                if items > 0 {
                    each(0..items);
                }
                return;
            }
            assert!(!is_in_job(), "a job of a pool must not run another one");
            let _turn = self.turn();
            self.run_job(&Job { each, items, unit }, units);
        });
    }

    /// The share of one of `active` threads in some units.
    #[doc(hidden)] // for tests
    pub fn share(&self, index: usize, active: usize, units: u32) -> Range<u32> {
        let before = |index: usize| u128::from(self.shared.capacities[index]);
        let first = |index: usize| (u128::from(units) * before(index) / before(active)) as u32;
        first(index)..first(index + 1)
    }

    fn run_job(&self, job: &Job<'_>, units: u32) {
        let shared = &*self.shared;
        let active = shared.slots.len().min(units as usize);
        // What was done before: nothing is being done now.
        let done = shared.units_done();
        shared.gate.job.store(std::ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        for (index, slot) in shared.slots.iter().enumerate().take(active) {
            slot.share.set(self.share(index, active, units));
        }
        let epoch = (shared.gate.word.load(Ordering::Relaxed) >> EPOCH) + 1;
        shared.gate.word.store(epoch << EPOCH | active as u64, Ordering::Release);
        shared.wake(active);
        set_in_job(true);
        shared.do_units(0, 1..active);
        set_in_job(false);
        within(Phase::Wait, || {
            let mut turns = 0;
            while shared.units_done() != done.wrapping_add(u64::from(units)) {
                turn(&mut turns);
            }
        });
        let panic = lock(&shared.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `each(item)` for every item.
    pub fn for_each<T: Send>(&self, items: &mut [T], each: impl Fn(&mut T) + Sync) {
        self.rows(items, 1, 1, |_, item| item.iter_mut().for_each(&each));
    }

    /// Calls `each(index, chunk)` for every chunk of `width` items; the last one may be shorter.
    pub fn chunks<T: Send>(&self, data: &mut [T], width: usize, each: impl Fn(usize, &mut [T]) + Sync) {
        let (len, first) = (data.len(), SharedPointer(data.as_mut_ptr()));
        self.run(len.div_ceil(width), &|index| {
            let start = index * width;
            // SAFETY: as in `rows`.
            let chunk = unsafe { std::slice::from_raw_parts_mut(first.at(start), width.min(len - start)) };
            each(index, chunk);
        });
    }

    /// Calls `each(row, values)` for every row of `width` values; `least` rows are worth a thread.  // data [rows, width]
    pub fn rows<T: Send>(
        &self,
        data: &mut [T],
        width: usize,
        least: usize,
        each: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let rows = data.len() / width;
        let first = SharedPointer(data.as_mut_ptr());
        self.ranges(rows, least, &|rows| {
            for row in rows {
                // SAFETY: the row is inside `data`, which is borrowed until `ranges` returns, and no other range has it.
                let values = unsafe { std::slice::from_raw_parts_mut(first.at(row * width), width) };
                each(row, values);
            }
        });
    }
}

/// Where data begins that threads write disjoint parts of.
struct SharedPointer<T>(*mut T);

// SAFETY: who dereferences it must know that no other thread has this part; what it points to may go to another thread.
unsafe impl<T: Send> Sync for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    /// # Safety
    /// As [`pointer::add`].
    unsafe fn at(&self, index: usize) -> *mut T {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(index) }
    }
}

impl<W: Word> Shared<W> {
    fn units_done(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.wrapping_add(slot.done.load(Ordering::Acquire)))
    }

    /// Does the units of the own share, then those of `others` that these have not begun, and counts them.
    fn do_units(&self, own: usize, others: impl Iterator<Item = usize>) {
        let mut done = 0;
        for share in std::iter::once(own).chain(others) {
            while let Some(units) = self.slots[share].share.claim(share == own) {
                done += u64::from(units.end - units.start);
                // SAFETY: `run_job` returns when these units are counted below, so the job is alive. The claim read what
                // `Share::set` wrote, so this reads the pointer that was stored before, or none that is newer.
                let job = unsafe { &*self.gate.job.load(Ordering::Relaxed) };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job.do_units(units))) {
                    *lock(&self.panic) = Some(panic);
                }
            }
        }
        if done > 0 {
            let slot = &self.slots[own].done;
            slot.store(slot.load(Ordering::Relaxed).wrapping_add(done), Ordering::Release);
        }
    }

    /// The loop of a worker: waits for something new and takes part, until the pool ends.
    fn work(&self, own: usize) {
        *lock(&self.slots[own].thread) = Some(current());
        set_in_job(true); // this thread does nothing else
        let (mut seen, mut turns) = (0, 0);
        loop {
            let gate = self.gate.word.load(Ordering::Acquire);
            let active = (gate & ACTIVE) as usize;
            if gate & STOP != 0 {
                return;
            }
            if gate >> EPOCH != seen {
                seen = gate >> EPOCH;
                if own < active {
                    self.do_units(own, others(own, active));
                    turns = 0;
                }
            } else if turns < SPINS {
                turn(&mut turns);
            } else {
                self.sleep(own, seen);
                turns = 0;
            }
        }
    }

    /// Parks the worker unless there is something new; whoever wakes it finds it by `parked`.
    fn sleep(&self, own: usize, seen: u64) {
        let slot = &self.slots[own];
        slot.parked.store(1, Ordering::Relaxed);
        self.sleepers.0.add(1, Ordering::Relaxed);
        // Either this thread sees the new gate, or whoever opened it sees `sleepers` and `parked`.
        fence(Ordering::SeqCst);
        let gate = self.gate.word.load(Ordering::Relaxed);
        if gate >> EPOCH == seen && gate & STOP == 0 {
            park();
        }
        slot.parked.store(0, Ordering::Relaxed);
        self.sleepers.0.add(u64::MAX, Ordering::Relaxed);
        // Who opened the gate left these to this thread, if they were parked when it looked.
        fence(Ordering::SeqCst);
        self.children(own).for_each(|child| self.unpark(child));
    }

    /// Wakes the parked ones of the first `active` threads, as a tree: each wakes two more, since a call of the system takes
    /// longer than many a job.
    fn wake(&self, active: usize) {
        fence(Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::Relaxed) == 0 {
            return;
        }
        let is_parked = |index: usize| index > 0 && self.slots[index].parked.load(Ordering::Relaxed) != 0;
        for index in (1..active).filter(|&index| !is_parked((index - 1) / 2)) {
            self.unpark(index);
        }
    }

    /// The threads that `own` wakes.
    fn children(&self, own: usize) -> impl Iterator<Item = usize> + use<W> {
        2 * own + 1..(2 * own + 3).min(self.slots.len().max(2 * own + 1))
    }

    fn unpark(&self, index: usize) {
        let slot = &self.slots[index];
        if slot.parked.load(Ordering::Relaxed) != 0 {
            lock(&slot.thread).iter().for_each(Thread::unpark);
        }
    }
}

impl<W: Word> Drop for Pool<W> {
    fn drop(&mut self) {
        if !self.is_alive() {
            // The threads exist in the parent only; joining them here would never return.
            return std::mem::forget(std::mem::take(&mut self.workers));
        }
        let word = &self.shared.gate.word;
        word.store(word.load(Ordering::Relaxed) | STOP, Ordering::Release);
        self.shared.wake(self.shared.slots.len());
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl<W: Word> std::fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

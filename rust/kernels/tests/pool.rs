//! The thread pool.

use ropechat_kernels::compute::pool;
use ropechat_kernels::compute::pool::sync::{Mutex, Word};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::ThreadId;

type Pool = pool::Pool;

#[test]
fn every_part_is_done_once_also_after_parking() {
    let pool = Pool::oversubscribed(3);
    for round in 0..300 {
        let done: Vec<AtomicUsize> = (0..round % 40).map(|_| AtomicUsize::new(0)).collect();
        pool.run(done.len(), &|part| {
            done[part].fetch_add(1, Ordering::Relaxed);
        });
        assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1), "round {round}");
        if round % 100 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn for_each_touches_every_item() {
    for threads in 1..4 {
        let mut items: Vec<usize> = (0..97).collect();
        Pool::oversubscribed(threads).for_each(&mut items, |item| *item += 1);
        assert!(items.iter().enumerate().all(|(i, &item)| item == i + 1));
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::oversubscribed(2);
    for culprit in 0..2 {
        let job = |part| {
            if part == culprit {
                resume_unwind(Box::new("a panic"))
            }
        };
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(2, &job)));
        assert!(result.is_err());
        pool.run(2, &|_| ());
    }
}

#[test]
fn a_second_panic_is_not_raised_by_a_later_job() {
    let (pool, both) = (Pool::oversubscribed(2), std::sync::Barrier::new(2));
    for _ in 0..20 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, &|part| {
                both.wait(); // a thread each
                resume_unwind(Box::new(part));
            });
        }));
        assert!(result.is_err());
        pool.run(2, &|_| ());
    }
}

#[test]
fn a_job_inside_a_job_is_refused_and_does_not_hang() {
    let (say, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = Pool::oversubscribed(2);
        let nested = catch_unwind(AssertUnwindSafe(|| pool.run(2, &|_| pool.run(2, &|_| ()))));
        pool.run(2, &|_| ()); // and the pool lives on
        say.send(nested.is_err())
    });
    // A hang is what this would be without the refusal.
    assert_eq!(heard.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
}

/// A word that counts how often it goes from one core to another, if each thread is a core of its own: a read where the thread has
/// no copy, or a write where it is not the only one with a copy.
struct Counted {
    word: AtomicU64,
    copies: Mutex<HashSet<ThreadId>>,
}

static TRANSFERS: AtomicUsize = AtomicUsize::new(0);

impl Counted {
    fn touch<T>(&self, is_write: bool, access: impl FnOnce(&AtomicU64) -> T) -> T {
        let mut copies = self.copies.lock().unwrap();
        let own = std::thread::current().id();
        if !copies.contains(&own) || is_write && copies.len() > 1 {
            TRANSFERS.fetch_add(1, Ordering::Relaxed);
        }
        if is_write {
            copies.clear();
        }
        copies.insert(own);
        access(&self.word)
    }
}

impl Word for Counted {
    fn new(value: u64) -> Self {
        Self { word: AtomicU64::new(value), copies: Mutex::default() }
    }

    fn load(&self, order: Ordering) -> u64 {
        self.touch(false, |word| word.load(order))
    }

    fn store(&self, value: u64, order: Ordering) {
        self.touch(true, |word| word.store(value, order));
    }

    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        self.touch(true, |word| {
            word.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed).map(|_| ())
        })
    }

    fn add(&self, value: u64, order: Ordering) {
        self.touch(true, |word| word.fetch_add(value, order));
    }
}

/// A lock per worker, or a word that all write, would make this grow with the square of the number: 64 per thread where 12
/// are usual. A thread that is interrupted inside a step repeats some, so the limit is not sharp.
#[test]
fn a_barrier_costs_each_thread_a_fixed_number_of_transfers() {
    for threads in [2, 4, 8, 16, 32, 64] {
        let (pool, all) = (pool::Pool::<Counted>::oversubscribed(threads), Barrier::new(threads));
        let run = || pool.run(threads, &|_| _ = all.wait()); // a part for each thread, and none is late
        run();
        let before = TRANSFERS.load(Ordering::Relaxed);
        const JOBS: usize = 4;
        (0..JOBS).for_each(|_| run());
        let per_job = (TRANSFERS.load(Ordering::Relaxed) - before) as f64 / JOBS as f64;
        println!("{threads} threads: {per_job} transfers per job, {} per thread", per_job / threads as f64);
        assert!(per_job <= 20.0 * threads as f64, "{threads} threads: {per_job}");
    }
}

#[test]
fn two_callers_take_turns_in_the_order_of_asking() {
    let pool = Arc::new(Pool::oversubscribed(3));
    let turn = pool.turn();
    let (say, heard) = mpsc::channel();
    let mut callers = Vec::new();
    for caller in 0..2 {
        let (pool, say) = (Arc::clone(&pool), say.clone());
        let (asks, asked) = mpsc::channel();
        callers.push(std::thread::spawn(move || {
            asks.send(()).unwrap();
            pool.run(4, &|_| ());
            say.send(caller).unwrap();
        }));
        asked.recv().unwrap();
    }
    pool.run(4, &|_| ()); // has the turn: does not wait for itself
    assert!(heard.try_recv().is_err());
    drop(turn);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    let mut both: Vec<usize> = heard.try_iter().collect();
    both.sort_unstable();
    assert_eq!(both, [0, 1]);
}

#[test]
fn a_fast_core_has_a_larger_share_and_all_parts_are_done() {
    use ropechat_platform::cores::{Core, fastest_cores};
    let cores: Vec<Core> =
        fastest_cores().into_iter().zip([3, 1]).map(|(core, c)| Core { capacity: c, ..core }).collect();
    if cores.is_empty() {
        return; // the system does not say which there are
    }
    let (pool, all) = (Pool::pinned(8, &cores), AtomicUsize::new(0));
    assert_eq!(pool.threads(), 8);
    for _ in 0..20 {
        pool.run(64, &|_| _ = all.fetch_add(1, Ordering::Relaxed));
    }
    assert_eq!(all.into_inner(), 20 * 64);
    if cores.len() == 2 {
        assert_eq!([pool.share(0, 2, 64), pool.share(1, 2, 64)], [0..48, 48..64]);
    }
}

#[test]
fn ranges_make_up_all_items_once() {
    let pool = Pool::oversubscribed(4);
    for (items, unit) in [(0, 1), (1, 8), (7, 8), (9, 8), (64, 8), (1000, 3), (3, 0)] {
        let seen: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
        pool.ranges(items, unit, &|range| {
            assert!(range.start.is_multiple_of(unit.max(1)) && range.start < range.end);
            seen[range].iter().for_each(|count| _ = count.fetch_add(1, Ordering::Relaxed));
        });
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{items} by {unit}");
    }
}

/// As engines do that share a pool: eight threads with long and short turns, jobs that panic, and ends.
#[test]
fn eight_callers_share_a_pool() {
    let pool = Arc::new(Pool::oversubscribed(3));
    let sums: Vec<usize> = std::thread::scope(|scope| {
        let caller = |caller: usize| {
            let pool = Arc::clone(&pool);
            scope.spawn(move || {
                let mut values = vec![0; 50];
                for round in 0..40 {
                    let _turn = (round % 3 == 0).then(|| pool.turn());
                    pool.rows(&mut values, 1, 1 + caller % 2, |row, value| value[0] += row);
                    if round % 10 == caller {
                        let fails = || {
                            pool.run(5, &|part| {
                                if part == 3 {
                                    resume_unwind(Box::new(()))
                                }
                            })
                        };
                        assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
                    }
                }
                values.iter().sum()
            })
        };
        let callers: Vec<_> = (0..8).map(caller).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(sums, [40 * 49 * 50 / 2; 8]);
}

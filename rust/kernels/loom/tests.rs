//! The thread pool in every order of its steps (loom), within a bound on the number of preemptions.

use crate::compute::pool::Pool;
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a test in every order of its steps with at most so many preemptions (LOOM_MAX_PREEMPTIONS says otherwise).
fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(preemptions));
    model.max_branches = 100_000;
    model.check(test);
}

/// Each part is done once, by any thread, before `run` returns, and everything that it wrote is seen then. The counters
/// are of this frame: loom reports a use after the end of it.
fn run_once(pool: &Pool, parts: usize) {
    let done: Vec<loom::cell::UnsafeCell<usize>> =
        (0..parts).map(|_| loom::cell::UnsafeCell::new(0)).collect();
    struct Cells<'a>(&'a [loom::cell::UnsafeCell<usize>]);
    // SAFETY: loom checks each access.
    unsafe impl Sync for Cells<'_> {}
    let cells = Cells(&done);
    pool.run(parts, &|part| {
        let Cells(cells) = &cells;
        // SAFETY: loom checks that no other thread accesses it.
        cells[part].with_mut(|count| unsafe { *count += 1 });
    });
    for cell in &done {
        // SAFETY: as above.
        assert_eq!(cell.with(|count| unsafe { *count }), 1);
    }
}

#[test]
fn two_jobs_of_two_threads() {
    explore(2, || {
        let pool = Pool::oversubscribed(2);
        run_once(&pool, 2);
        run_once(&pool, 2);
    });
}

#[test]
fn three_threads_which_wake_each_other() {
    explore(1, || run_once(&Pool::oversubscribed(3), 2));
}

#[test]
fn a_worker_that_comes_too_late_for_a_job_does_no_part_of_it() {
    explore(2, || {
        let pool = Pool::oversubscribed(2);
        for _ in 0..2 {
            run_once(&pool, 2);
        }
    });
}

#[test]
fn a_panic_of_any_thread_is_raised_after_all_parts_have_ended() {
    explore(2, || {
        let (pool, ended) = (Pool::oversubscribed(2), AtomicUsize::new(0));
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, &|part| {
                ended.fetch_add(1, Ordering::Relaxed);
                if part == 1 {
                    std::panic::resume_unwind(Box::new("part 1"));
                }
            });
        }));
        assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "part 1");
        assert_eq!(ended.load(Ordering::Relaxed), 2);
        run_once(&pool, 2);
    });
}

#[test]
fn two_callers_take_turns() {
    explore(2, || {
        let pool = loom::sync::Arc::new(Pool::oversubscribed(2));
        let other = loom::sync::Arc::clone(&pool);
        let caller = loom::thread::spawn(move || run_once(&other, 2));
        run_once(&pool, 2);
        caller.join().unwrap();
    });
}

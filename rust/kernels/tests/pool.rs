//! The thread pool.

use ropechat_kernels::compute::pool::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_part_is_done_once_also_after_parking() {
    let pool = Pool::new(3);
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
        Pool::new(threads).for_each(&mut items, |item| *item += 1);
        assert!(items.iter().enumerate().all(|(i, &item)| item == i + 1));
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::new(2);
    for culprit in 0..2 {
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(2, &|part| assert_ne!(part, culprit))));
        assert!(result.is_err());
        pool.run(2, &|_| ());
    }
}

#[test]
fn a_second_panic_is_not_raised_by_a_later_job() {
    let (pool, both) = (Pool::new(2), std::sync::Barrier::new(2));
    for _ in 0..20 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, &|part| {
                both.wait(); // a thread each
                panic!("part {part}");
            });
        }));
        assert!(result.is_err());
        pool.run(2, &|_| ());
    }
}

#[test]
fn nothing_of_a_job_is_kept() {
    let pool = Pool::new(2);
    pool.run(8, &|_| ());
    assert!(!pool.holds_a_job());
}

#[test]
fn a_job_inside_a_job_is_refused_and_does_not_hang() {
    let (say, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = Pool::new(2);
        let nested = catch_unwind(AssertUnwindSafe(|| pool.run(2, &|_| pool.run(2, &|_| ()))));
        pool.run(2, &|_| ()); // and the pool lives on
        say.send(nested.is_err())
    });
    // A hang is what this would be without the refusal.
    assert_eq!(heard.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
}

//! Times of the phases of a step.

use ropechat_kernels::compute::phases::{Phase, announce, job, lap, start, stop, within};
use std::time::{Duration, Instant};

#[test]
fn phases_add_up_to_the_whole_and_a_part_is_counted_once() {
    assert_eq!(stop(Phase::Schedule), None);
    let begun = Instant::now();
    start();
    std::thread::sleep(Duration::from_millis(3));
    within(Phase::Wait, || std::thread::sleep(Duration::from_millis(5)));
    lap(Phase::OProj);
    std::thread::sleep(Duration::from_millis(2));
    let times = stop(Phase::Schedule).unwrap();
    let whole = begun.elapsed();
    assert!(times.of(Phase::Wait) >= Duration::from_millis(5));
    assert!(times.of(Phase::OProj) >= Duration::from_millis(3));
    assert!(times.of(Phase::Schedule) >= Duration::from_millis(2));
    let sum: Duration = Phase::ALL.iter().map(|&phase| times.of(phase)).sum();
    assert!(sum <= whole, "{sum:?} of {whole:?}: a part was counted twice");
    assert_eq!(stop(Phase::Schedule), None);
}

#[test]
fn jobs_are_counted_by_phase_and_units_and_not_inside_jobs() {
    start();
    announce(100, 200);
    job(3, || job(9, || std::thread::sleep(Duration::from_millis(2))));
    job(3, || ());
    lap(Phase::OProj);
    job(3, || ());
    let times = stop(Phase::Schedule).unwrap();
    let found: Vec<_> = times.jobs().collect();
    let [(Phase::Schedule, 3, later), (Phase::OProj, 3, jobs)] = found[..] else { panic!("{found:?}") };
    assert_eq!((jobs.count, jobs.bytes, jobs.products, later.count), (2, 100, 200, 1));
    assert!(jobs.time >= Duration::from_millis(2));
}

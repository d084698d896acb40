//! Times of the phases of a step.

use ropechat_kernels::compute::phases::{Phase, lap, start, stop, within};
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

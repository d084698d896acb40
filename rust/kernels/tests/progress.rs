//! Progress of long passes.

use ropechat_kernels::compute::progress::{PassProgress, Progress, Snapshot, Stage};

#[test]
fn a_pass_counts_layer_by_layer_and_never_above_the_total() {
    let progress = Progress::default();
    let before = Snapshot { stage: Stage::Reading, done: 100, total: 140 };
    let pass = PassProgress::new(&progress, before, 40);
    let done = [0, 1, 7, 8].map(|layer| {
        pass.report(layer, 8);
        progress.read().done
    });
    assert_eq!(done, [100, 105, 135, 140]);
    progress.add(1);
    assert_eq!(progress.read().done, 140);
    progress.end();
    assert_eq!(progress.read(), Snapshot::default());
}

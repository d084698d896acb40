//! The progress of a long computation, for other threads to read while it runs.

use ropechat_platform::sync::Mutex;
use std::sync::PoisonError;

/// What is being waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// No stage is in progress.
    #[default]
    Idle,
    /// A pack is read and checked; in bytes.
    Loading,
    /// Weights are packed; in bytes of the packed weights.
    Packing,
    /// Prompts are read; in tokens.
    Reading,
}

/// The progress of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// What is being waited for.
    pub stage: Stage,
    /// Bytes or tokens done.
    pub done: u64,
    /// All of them.
    pub total: u64,
}

/// The present stage. Written a few hundred times a second at most, so a lock costs nothing.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Snapshot>);

impl Progress {
    /// Begins a stage.
    pub fn begin(&self, stage: Stage, done: u64, total: u64) {
        self.update(|now| *now = Snapshot { stage, done: done.min(total), total });
    }

    /// Adds to what is done.
    pub fn add(&self, more: u64) {
        self.update(|now| now.done = now.done.saturating_add(more).min(now.total));
    }

    /// Ends the stage.
    pub fn end(&self) {
        self.update(|now| *now = Snapshot::default());
    }

    /// The current progress.
    pub fn read(&self) -> Snapshot {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The part of a [`Progress`] that belongs to one forward pass.
#[derive(Debug, Clone, Copy)]
pub struct PassProgress<'a> {
    progress: &'a Progress,
    /// Tokens of the passes before it.
    before: Snapshot,
    /// Tokens of this pass.
    rows: u64,
}

impl<'a> PassProgress<'a> {
    /// A pass over `rows` tokens of prompts, after `before`.
    pub fn new(progress: &'a Progress, before: Snapshot, rows: usize) -> Self {
        Self { progress, before, rows: rows as u64 }
    }

    /// `layer` of `layers` are computed: that share of the pass's tokens counts as done.
    pub fn report(&self, layer: usize, layers: usize) {
        let Snapshot { stage, done, total } = self.before;
        let share = self.rows * layer as u64 / layers.max(1) as u64;
        self.progress.begin(stage, done + share, total);
    }
}

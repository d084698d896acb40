//! The buffers of a forward pass.

use super::feed_forward::FeedForwardBuffers;
use super::mix::MixerBuffers;
use super::residual::BranchBuffers;
use super::streams::Streams;
use crate::model::Model;

/// Buffers of a forward pass, kept from step to step.
pub struct Workspace {
    /// The residual stream.  // [rows, hidden_size]
    pub(super) x: Vec<f32>,
    pub(super) branch: BranchBuffers,
    pub(super) mixers: MixerBuffers,
    pub(super) feed_forward: FeedForwardBuffers,
    pub(super) streams: Streams,
}

impl Workspace {
    /// The buffers of a model's passes.
    pub fn new(model: &Model) -> Self {
        Self {
            x: Vec::new(),
            branch: BranchBuffers::default(),
            mixers: MixerBuffers::default(),
            feed_forward: FeedForwardBuffers::default(),
            streams: Streams::new(model),
        }
    }

    /// Copies the residual stream of the last forward pass into `rows`.  // [rows, hidden_size]
    pub fn save_rows(&self, rows: &mut Vec<f32>) {
        rows.clone_from(&self.x);
    }

    /// Puts rows of a saved residual stream back, for [`lm_head`].  // [rows, hidden_size]
    pub fn load_rows(&mut self, rows: &[f32]) {
        self.x.clear();
        self.x.extend_from_slice(rows);
    }
}

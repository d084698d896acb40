//! What goes into a forward pass: runs of tokens, and what every step computes with.

use crate::config::{Config, RopeFrequencies};
use crate::kv_cache::KvSequence;
use crate::model::Model;
use ropechat_kernels::compute::{cancel::CancelToken, pool::Pool, progress::PassProgress};
use ropechat_kernels::kernel::Kernels;
use ropechat_platform::error::Result;

/// Consecutive tokens of one sequence.
pub struct Run<'a> {
    /// Token ids; the first one has the position `start_position + cache.len()`.
    pub ids: &'a [u32],
    /// The sequence's cache, with room reserved for the ids.
    pub cache: &'a mut KvSequence,
    /// The frequencies of each of the model's ropes, for the sequence's length.
    pub frequencies: &'a [RopeFrequencies],
    /// The main model's hidden state at the token before each id, for a model with `hidden_input`.  // [ids, hidden_size]
    pub hidden: &'a [f32],
    /// Position of the sequence's first token: 0, except where a test moves a text to other positions.
    pub start_position: usize,
}

impl Run<'_> {
    /// Position of the first id.
    pub fn position(&self) -> usize {
        self.start_position + self.cache.len()
    }
}

/// What a forward pass runs on.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    /// The instruction set's functions.
    pub kernels: Kernels,
    /// The threads.
    pub pool: &'a Pool,
    /// Checked before every layer.
    pub cancel: &'a CancelToken,
    /// Called before every layer.
    pub progress: Option<PassProgress<'a>>,
}

impl Compute<'_> {
    /// Called where a pass can end: before layer `index` of `layers`.
    ///
    /// # Errors
    /// Cancelled.
    pub fn enter_layer(&self, index: usize, layers: usize) -> Result<()> {
        self.progress.iter().for_each(|progress| progress.report(index, layers));
        self.cancel.check()
    }
}

/// What every step of a pass reads and none writes.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub config: &'a Config,
    pub kernels: Kernels,
    pub pool: &'a Pool,
    /// The tokens of all rows; none in the projection to logits.
    pub ids: &'a [u32],
}

impl<'a> Pass<'a> {
    pub fn new(model: &'a Model, compute: Compute<'a>, ids: &'a [u32]) -> Self {
        let Compute { kernels, pool, .. } = compute;
        Self { config: &model.config, kernels, pool, ids }
    }

    /// Rows of a residual stream.  // x [rows, hidden_size]
    pub fn rows(&self, x: &[f32]) -> usize {
        x.len() / self.config.hidden_size
    }
}

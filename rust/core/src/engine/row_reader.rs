//! The state of a text whose logit rows are being read.

use crate::config::RopeVariant;
use crate::kv_cache::KvSequence;

/// A text whose logit rows are being read.
pub(super) struct RowReader {
    pub ids: Vec<u32>,
    pub cache: KvSequence,
    pub rope_variant: RopeVariant,
    /// The row that is read next.
    pub next: usize,
    /// The residual stream of the last rows in the cache, those from `next` on among them.  // [rows, hidden_size]
    pub residual: Vec<f32>,
}

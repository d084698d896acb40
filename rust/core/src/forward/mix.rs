//! What mixes positions: attention, a recurrent mixer, or both.

use super::attention::{AttentionBuffers, attention};
use super::recurrent::{RecurrentBuffers, add_mixed, mix};
use super::residual::{BranchBuffers, norm_stream};
use super::rope::RopeAngles;
use super::shared_block::{SharedBlockBuffers, shared_block};
use super::state::{Pass, Run};
use crate::parts::Layer;
use ropechat_kernels::compute::phases::{Phase, lap};

/// Buffers of attention and recurrent mixers.
#[derive(Default)]
pub(super) struct MixerBuffers {
    pub attention: AttentionBuffers,
    recurrent: RecurrentBuffers,
    shared_block: SharedBlockBuffers,
}

impl MixerBuffers {
    /// Keeps the embeddings, where the model's shared blocks read them.  // x [rows, hidden_size]
    pub fn start(&mut self, pass: Pass<'_>, x: &[f32]) {
        if pass.config.shared_block.is_some() {
            self.shared_block.embedded.clear();
            self.shared_block.embedded.extend_from_slice(x);
        }
    }
}

/// x += attention(norm(x)), or a recurrent mixer instead of it or parallel to it; with norms of the stream itself
/// around, where the model has these.  // x [rows, hidden_size]
pub(super) fn mix_positions(
    pass: Pass<'_>,
    layer: &Layer,
    runs: &mut [Run<'_>],
    angles: &[RopeAngles],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    buffers: &mut MixerBuffers,
) {
    let [before, after] = &layer.stream_norms;
    norm_stream(pass, before.as_ref(), x);
    if let (Some(block), Some(attention), Some(weights)) =
        (&layer.shared_block, &layer.attention, &layer.recurrent)
    {
        let MixerBuffers { attention: of_attention, recurrent, shared_block: of_block } = buffers;
        shared_block(pass, (block, attention), runs, angles, x, branch, (of_block, of_attention));
        mix(pass, weights, runs, &of_block.sum, branch, recurrent);
        return add_mixed(pass, weights, runs, x, branch, recurrent);
    }
    if let Some(weights) = &layer.recurrent {
        mix(pass, weights, runs, x, branch, &mut buffers.recurrent);
        lap(Phase::Recurrent);
    }
    if let Some(weights) = &layer.attention {
        attention(pass, weights, runs, angles, x, branch, &mut buffers.attention);
    }
    if let Some(weights) = &layer.recurrent {
        add_mixed(pass, weights, runs, x, branch, &buffers.recurrent);
        lap(Phase::Recurrent);
    }
    norm_stream(pass, after.as_ref(), x);
}

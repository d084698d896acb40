//! What mixes positions: attention, a recurrent mixer, or both.

use super::attention::{AttentionBuffers, attend_input, attention};
use super::recurrent::{RecurrentBuffers, add_mixed, mix};
use super::residual::{BranchBuffers, norm_stream};
use super::rope::RopeAngles;
use super::state::{Pass, Run};
use super::step::Steps;
use crate::parts::Layer;
use ropechat_kernels::compute::phases::{Phase, lap};

/// Buffers of attention and recurrent mixers.
#[derive(Default)]
pub(super) struct MixerBuffers {
    pub attention: AttentionBuffers,
    recurrent: RecurrentBuffers,
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
    (buffers, steps): (&mut MixerBuffers, &mut Steps<'_>),
) {
    let MixerBuffers { attention: of_attention, recurrent } = buffers;
    let [before, after] = &layer.stream_norms;
    norm_stream(pass, before.as_ref(), x);
    let elsewhere = steps.iter_mut().find_map(|step| {
        step.attend_elsewhere(pass, layer, runs, x, branch, &mut |runs, x, branch, steps| {
            attend_input(pass, layer, runs, angles, x, branch, (of_attention, steps));
        })
    });
    if let Some(weights) = &layer.recurrent {
        mix(pass, weights, runs, elsewhere.unwrap_or(x), branch, recurrent);
        lap(Phase::Recurrent);
    }
    if elsewhere.is_none() {
        attention(pass, layer, runs, angles, x, branch, (of_attention, steps));
    }
    if let Some(weights) = &layer.recurrent {
        add_mixed(pass, weights, runs, x, branch, recurrent);
        lap(Phase::Recurrent);
    }
    norm_stream(pass, after.as_ref(), x);
}

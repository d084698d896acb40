//! THE forward pass: rows of tokens through the decoder, once, for chat, inspector and batch.
//!
//! [`forward`] takes *runs* of consecutive tokens, of any number of sequences, as one block of rows: embed, then per
//! layer attention and MLP on the residual stream, each behind its norm. [`lm_head`] computes the logits of the
//! rows that are read out. Attention reads keys and values from the cache in its type, also those of the rows of this
//! pass, so a row's result does not depend on how its sequence was split into runs (law 1).
//!
//! Shapes: `rows` = tokens of all runs; x `[rows, hidden_size]`; q `[rows, num_heads, head_dim]`; k and v
//! `[rows, num_kv_heads, head_dim]`.

pub(crate) mod attention;
mod embed;
mod feed_forward;
mod lm_head;
mod mix;
pub(crate) mod mlp;
pub(crate) mod moe;
mod observer;
pub(crate) mod per_layer;
pub(crate) mod recurrent;
pub(crate) mod residual;
pub(crate) mod rope;
pub(crate) mod state;
pub(crate) mod step;
mod streams;
mod workspace;

pub use attention::ObservedHeads;
pub use lm_head::{hidden_states, lm_head};
pub use observer::Observer;
pub use state::{Compute, Run};
pub use workspace::Workspace;

use crate::config::Residual;
use crate::model::Model;
use embed::embed;
use feed_forward::{finish_feed_forward, start_feed_forward};
use mix::mix_positions;
use observer::observe;
use rope::RopeAngles;
use ropechat_kernels::compute::activations::by_rows;
use ropechat_kernels::compute::phases::{Phase, lap};
use ropechat_platform::error::Result;
use state::Pass;

/// Runs all rows through all layers. Leaves the residual stream in `work`, and keys and values behind each cache's
/// length, uncommitted.
///
/// # Errors
/// Cancelled; nothing is committed, so every sequence is as it was.
pub fn forward(
    model: &Model,
    runs: &mut [Run<'_>],
    work: &mut Workspace,
    compute: Compute<'_>,
) -> Result<()> {
    observed_forward(model, runs, work, compute, None)
}

/// As [`forward`], with an observer of the first run: the same computation, and after each layer a look at it.
///
/// # Errors
/// As [`forward`].
pub fn observed_forward(
    model: &Model,
    runs: &mut [Run<'_>],
    work: &mut Workspace,
    compute: Compute<'_>,
    mut observer: Option<&mut dyn Observer>,
) -> Result<()> {
    let ids: Vec<u32> = runs.iter().flat_map(|run| run.ids.iter().copied()).collect();
    let pass = Pass::new(model, compute, &ids);
    let Workspace { x, branch, mixers, feed_forward, streams } = work;
    let angles = RopeAngles::of_ropes(&model.config, runs);
    let parallel = model.config.residual == Residual::Parallel;
    embed(model, pass, runs, &angles, branch, x);
    let of = (pass, model);
    streams.start(of, x, branch);
    lap(Phase::Embed);
    for layer in &model.layers {
        compute.enter_layer(layer.index, model.layers.len())?;
        let heads_wanted = observer.as_ref().is_some_and(|observer| observer.wants_heads(layer.index));
        mixers.attention.keep_unrotated(heads_wanted);
        streams.enter_layer(of, layer, runs, x, branch);
        if parallel {
            // The MLP reads x as it came, before attention adds to it.
            start_feed_forward(pass, layer, x, branch, feed_forward);
        }
        mix_positions(pass, layer, runs, &angles, x, branch, (mixers, &mut streams.steps));
        if !parallel {
            streams.enter_mlp(of, layer, x, branch);
            start_feed_forward(pass, layer, x, branch, feed_forward);
        }
        finish_feed_forward(of, layer, runs, branch, (feed_forward, &mut streams.steps), x);
        streams.leave_layer(of, layer, observer.is_some(), x, branch);
        if let [scalar] = layer.scalar[..] {
            by_rows(pass.pool, x, model.config.hidden_size, |_, x| pass.kernels.scale(x, scalar));
        }
        if let (Some(observer), Some(run)) = (observer.as_deref_mut(), runs.first()) {
            observe(observer, pass, layer, run, (&mixers.attention, &streams.steps), x);
        }
    }
    Ok(())
}

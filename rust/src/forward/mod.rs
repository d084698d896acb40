//! THE forward pass: rows of tokens through the decoder, once, for chat, inspector and batch alike.
//!
//! [`forward`] takes *runs* of consecutive tokens, of any number of sequences, as one block of rows: embed, then per
//! layer attention and MLP on the residual stream, each behind its norm. [`lm_head`] computes the logits of the
//! rows that are read out. Attention reads keys and values from the cache in its type, also those of the rows of this
//! pass, so a row's result does not depend on how its sequence was split into runs (law 1).
//!
//! Shapes: `rows` = tokens of all runs; x `[rows, hidden_size]`; q `[rows, num_heads, head_dim]`; k and v
//! `[rows, num_kv_heads, head_dim]`.

mod alt_up;
mod attention;
mod cycles;
mod hyper;
mod mlp;
mod moe;
mod ngram;
mod observer;
mod per_layer;
mod recurrent;
mod residual;
mod rope;
mod shared_block;
mod state;

pub use attention::ObservedHeads;
pub use observer::Observer;
pub use state::{Compute, Run};

use crate::compute::activations::{RowSource, by_rows};
use crate::compute::phases::{Phase, lap};
use crate::compute::weight::Epilogue;
use crate::config::{EmbeddingPosition, HeadTransform, Residual, ResidualFactors};
use crate::error::Result;
use crate::model::{Layer, Mlp, Model, NormWeights};
use alt_up::Streams;
use attention::{AttentionBuffers, attention};
use cycles::CycleStates;
use hyper::{HyperStreams, branches};
use mlp::{down_proj, gate_up_proj};
use moe::{MoeBuffers, add_experts, add_scaled_experts, dense_and_moe, experts, moe_forward};
use ngram::{NgramBuffers, add_ngrams};
use per_layer::PerLayerInputs;
use recurrent::{RecurrentBuffers, add_mixed, mix};
use residual::{BranchBuffers, norm, norm_or_copy, norm_stream, normed_input};
use rope::RopeAngles;
use shared_block::{SharedBlockBuffers, shared_block};
use state::Pass;

/// Buffers of a forward pass, kept from step to step.
#[derive(Default)]
pub struct Workspace {
    /// The residual stream.  // [rows, hidden_size]
    x: Vec<f32>,
    branch: BranchBuffers,
    mixers: MixerBuffers,
    gated: Vec<f32>, // [rows, intermediate_size]
    moe: MoeBuffers,
    per_layer: PerLayerInputs,
    streams: Streams,
    cycles: CycleStates,
    hyper: HyperStreams,
    ngram: NgramBuffers,
}

/// Buffers of whatever mixes positions.
#[derive(Default)]
struct MixerBuffers {
    attention: AttentionBuffers,
    recurrent: RecurrentBuffers,
    shared_block: SharedBlockBuffers,
}

impl Workspace {
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
    let pass = Pass::new(model, compute);
    let Workspace { x, branch, mixers, gated, moe, per_layer, streams, cycles, hyper, ngram } = work;
    let angles = RopeAngles::of_ropes(&model.config, runs);
    embed(model, pass, runs, &angles, x);
    if let Some(second) = &model.per_layer {
        let ids: Vec<u32> = runs.iter().flat_map(|run| run.ids.iter().copied()).collect();
        per_layer.prepare(pass, second, &ids, x, &mut branch.input);
    }
    if model.config.shared_block.is_some() {
        mixers.shared_block.embedded.clone_from(x);
    }
    lap(Phase::Embed);
    if model.config.alt_up.is_some() {
        streams.start(pass, &model.streams[0], x, branch);
    }
    hyper.start(pass, x);
    for layer in &model.layers {
        compute.enter_layer(layer.index, model.layers.len())?;
        mixers
            .attention
            .keep_unrotated(observer.as_ref().is_some_and(|observer| observer.wants_heads(layer.index)));
        let [mlp_norm, mlp_out_norm] = [layer.mlp_norm.as_ref(), layer.mlp_out_norm.as_ref()];
        let factors = layer.spec.residual_factors[1];
        streams.predict(pass, layer, x, branch);
        cycles.before_layer(pass, model, layer.index, x);
        let [read_by_attention, written_by_mlp] = branches(layer);
        add_ngrams(pass, layer, runs, hyper, branch, ngram);
        hyper.read(pass, read_by_attention, x, branch);
        match (model.config.residual, &layer.mlp) {
            (Residual::Parallel, Some(Mlp::Dense(mlp))) => {
                // Both read x as it came: the MLP's first half goes before attention adds to it.
                normed_input(pass, mlp_norm, mlp.gate_up_proj.dtype(), x, &mut branch.input);
                gate_up_proj(pass, mlp, &branch.input, gated);
                mix_positions(pass, layer, runs, &angles, x, branch, mixers);
                down_proj(pass, mlp, mlp_out_norm, factors, gated, branch, x);
            }
            (Residual::Parallel, Some(Mlp::Moe(mlp))) => {
                experts(pass, mlp, mlp_norm, x, branch, moe);
                mix_positions(pass, layer, runs, &angles, x, branch, mixers);
                add_experts(pass, mlp_out_norm, factors, moe, x);
            }
            (_, Some(Mlp::Dense(mlp))) => {
                mix_positions(pass, layer, runs, &angles, x, branch, mixers);
                streams.join(pass, layer, x);
                hyper.join(pass, layer, x, branch);
                normed_input(pass, mlp_norm, mlp.gate_up_proj.dtype(), x, &mut branch.input);
                gate_up_proj(pass, mlp, &branch.input, gated);
                down_proj(pass, mlp, mlp_out_norm, factors, gated, branch, x);
            }
            (Residual::Scaled, Some(Mlp::Moe(mlp))) => {
                mix_positions(pass, layer, runs, &angles, x, branch, mixers);
                experts(pass, mlp, mlp_norm, x, branch, moe);
                match &layer.mlp_residual_scales {
                    Some(scales) => add_scaled_experts(pass, scales, moe, x),
                    None => add_experts(pass, mlp_out_norm, factors, moe, x),
                }
            }
            (_, Some(Mlp::Moe(mlp))) => {
                mix_positions(pass, layer, runs, &angles, x, branch, mixers);
                hyper.join(pass, layer, x, branch);
                moe_forward(pass, mlp, [mlp_norm, mlp_out_norm], factors, x, branch, moe);
            }
            (_, Some(Mlp::DenseAndMoeForNext(both))) => {
                mix_positions(pass, layer, runs, &angles, x, branch, mixers);
                experts(pass, &both.1, mlp_norm, x, branch, moe);
                normed_input(pass, mlp_norm, both.0.gate_up_proj.dtype(), x, &mut branch.input);
                gate_up_proj(pass, &both.0, &branch.input, gated);
                down_proj(pass, &both.0, mlp_out_norm, factors, gated, branch, x);
            }
            (_, Some(Mlp::DenseAndMoe(both))) => {
                mix_positions(pass, layer, runs, &angles, x, branch, mixers);
                dense_and_moe(pass, both, [mlp_norm, mlp_out_norm], factors, x, branch, moe);
            }
            (_, None) => mix_positions(pass, layer, runs, &angles, x, branch, mixers),
        }
        if matches!(layer.mlp, Some(Mlp::Moe(_) | Mlp::DenseAndMoe(_) | Mlp::DenseAndMoeForNext(_))) {
            lap(Phase::Experts);
        }
        hyper.write(pass, written_by_mlp, x);
        if observer.is_some() || layer.index + 1 == model.layers.len() {
            hyper.read(pass, model.hyper_head.as_ref(), x, branch);
        }
        let before = layer.index.checked_sub(1).and_then(|before| model.layers[before].mlp.as_ref());
        if let Some(Mlp::DenseAndMoeForNext(_)) = before {
            add_experts(pass, None, ResidualFactors::ONE, moe, x);
        }
        if layer.alt_up.is_some() {
            streams.correct(pass, layer, per_layer, x, branch);
            if layer.index + 1 == model.layers.len() {
                streams.finish(pass, &model.streams[1], x, branch);
            }
        } else {
            per_layer.add(pass, layer, None, branch, x);
        }
        if layer.scalar != 1.0 {
            by_rows(pass.pool, x, model.config.hidden_size, |_, x| pass.kernels.scale(x, layer.scalar));
        }
        if let (Some(observer), Some(run)) = (observer.as_deref_mut(), runs.first()) {
            observer.after_layer(layer.index, x);
            if let Some(weights) = &layer.attention
                && observer.wants_heads(layer.index)
            {
                observer.heads(&mixers.attention.observed(pass, weights, run));
            }
        }
    }
    Ok(())
}

/// x += attention(norm(x)), or a recurrent mixer in its place or beside it; with norms of the stream itself around, where the
/// model has these.  // x [rows, hidden_size]
fn mix_positions(
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

/// The logits of some rows of the residual stream.  // logits [rows.len(), model.padded_vocab()]
pub fn lm_head(
    model: &Model,
    rows: &[usize],
    work: &mut Workspace,
    logits: &mut Vec<f32>,
    compute: Compute<'_>,
) {
    let (pass, weight) = (Pass::new(model, compute), model.lm_head());
    let Workspace { x, branch: BranchBuffers { input, out: transformed, .. }, .. } = work;
    let hidden_size = model.config.hidden_size;
    let normed = |r: usize, out: &mut [f32]| {
        norm_or_copy(pass, &x[rows[r] * hidden_size..][..hidden_size], model.norm.as_ref(), out);
    };
    let stride = match (&model.head_transform, model.config.head_transform) {
        (Some((dense, _)), HeadTransform::DenseAndNorm { activation, .. }) => {
            let (kernels, pool) = (pass.kernels, pass.pool);
            input.quantize_rows(
                rows.len(),
                hidden_size,
                dense.dtype(),
                kernels,
                pool,
                RowSource::Computed(&normed),
            );
            transformed.resize(rows.len() * dense.padded_out(), 0.0);
            let epilogue = Epilogue::Activate(activation, transformed, dense.padded_out());
            dense.matmul(input, kernels, pool, epilogue);
            dense.padded_out()
        }
        _ => 0,
    };
    input.quantize_rows(
        rows.len(),
        hidden_size,
        weight.dtype(),
        pass.kernels,
        pass.pool,
        RowSource::Computed(&|r, out| match &model.head_transform {
            None => normed(r, out),
            Some((_, norm)) => norm_or_copy(pass, &transformed[r * stride..][..hidden_size], Some(norm), out),
        }),
    );
    lap(Phase::Norm);
    logits.resize(rows.len() * model.padded_vocab(), 0.0);
    weight.matmul(input, pass.kernels, pass.pool, Epilogue::Store(logits));
    scale_and_cap(pass, logits, model.padded_vocab());
    lap(Phase::LmHead);
}

/// logits = cap * tanh(scale * logits / cap); a model may have both, either or none.  // logits [rows, stride]
fn scale_and_cap(pass: Pass<'_>, logits: &mut [f32], stride: usize) {
    let (scale, kernels) = (pass.config.logit_scale, pass.kernels);
    match pass.config.final_logit_softcapping {
        None if scale == 1.0 => {}
        None => by_rows(pass.pool, logits, stride, |_, row| kernels.scale(row, scale)),
        Some(cap) => by_rows(pass.pool, logits, stride, |_, row| kernels.softcap(row, scale, cap)),
    }
}

/// x = the embeddings of all rows, with their positions where those enter here.  // x [rows, hidden_size]
fn embed(model: &Model, pass: Pass<'_>, runs: &[Run<'_>], angles: &[RopeAngles], x: &mut Vec<f32>) {
    let (config, kernels) = (&model.config, pass.kernels);
    let tokens: Vec<(u32, usize)> =
        runs.iter().flat_map(|run| run.ids.iter().copied().zip(run.position()..)).collect();
    let hidden_size = config.hidden_size;
    x.resize(tokens.len() * hidden_size, 0.0);
    by_rows(pass.pool, x, hidden_size, |row, x| {
        let (id, position) = tokens[row];
        model.embedding().row(id as usize, x);
        if config.embedding_multiplier != 1.0 {
            kernels.scale(x, config.embedding_multiplier);
        }
        if let Some([scale, bias]) = &model.embedding_scales {
            kernels.add(x, bias);
            kernels.mul(x, scale);
        }
        match config.position {
            EmbeddingPosition::None => {}
            EmbeddingPosition::Learned => {
                kernels.add(x, &model.positions[position * hidden_size..][..hidden_size]);
            }
            EmbeddingPosition::Rotated { .. } => {
                let (cos, sin) = angles[0].row(row);
                kernels.rope_interleaved(x, cos, sin);
            }
        }
        if let Some(NormWeights { weight, bias, .. }) = &model.embedding_norm {
            let embedded = x.to_vec();
            norm(config.norm, &embedded, weight, bias, x, kernels);
        }
    });
}

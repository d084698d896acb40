//! THE forward pass: rows of tokens through the decoder, once, for chat, inspector and batch alike.
//!
//! [`forward`] takes *runs* of consecutive tokens, of any number of sequences, as one block of rows: embed, then per
//! layer attention and MLP on the residual stream, each behind its norm. [`unembed`] turns the rows that somebody wants
//! to read into logits. Keys and values go through the cache in its type, also those of the rows at hand, so a row's
//! result does not depend on how its sequence was cut into runs (law 1).
//!
//! Shapes: `rows` = tokens of all runs; x `[rows, hidden_size]`; q `[rows, num_heads, head_dim]`; k and v
//! `[rows, num_kv_heads, head_dim]`.

pub mod attention;
mod moe;
pub mod rope;

use crate::compute::activations::{Activations, by_rows};
use crate::compute::pool::{CancelToken, Pool};
use crate::compute::weight::{Epilogue, Weight};
use crate::config::{EmbeddingPosition, MlpShape, Norm, Residual, RopeLayout};
use crate::error::Result;
use crate::forward::attention::attention;
use crate::forward::attention::partials::Partials;
use crate::forward::moe::{ExpertWork, experts};
use crate::forward::rope::Frequencies;
use crate::kernel::Kernels;
use crate::kv_cache::KvSequence;
use crate::model::{DenseMlp, Layer, Mlp, Model, NormWeights};
use crate::quant::DType;
use std::cell::RefCell;

/// Consecutive tokens of one sequence.
pub struct Run<'a> {
    /// Token ids; the first stands at position `cache.len()`.
    pub ids: &'a [u32],
    /// The sequence's cache, with room reserved for the ids.
    pub cache: &'a mut KvSequence,
    /// Rotation frequencies of each rope, those of the sequence's length.
    pub frequencies: &'a [Frequencies],
}

/// What a forward computes with.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    /// The ISA's functions.
    pub kernels: Kernels,
    /// The threads.
    pub pool: &'a Pool,
    /// Read before every layer.
    pub cancel: &'a CancelToken,
}

/// Buffers of a forward, kept from step to step.
#[derive(Default)]
pub struct Workspace {
    /// The residual stream.  // [rows, hidden_size]
    pub x: Vec<f32>,
    pub(crate) input: Activations,
    pub(crate) qkv: Vec<f32>, // [rows, qkv_stride]
    pub(crate) partials: Partials,
    pub(crate) gated: Vec<f32>,  // [rows, intermediate_size]
    pub(crate) branch: Vec<f32>, // [rows, hidden_size or padded]
    pub(crate) angles: Vec<Angles>,
    pub(crate) latents: [Vec<f32>; 3],
    pub(crate) experts: ExpertWork,
}

/// cos and sin of every row's position, of one rope.
pub(crate) struct Angles {
    pub(crate) layout: RopeLayout,
    pairs: usize,
    cos: Vec<f32>, // [rows, rotary_dim / 2]
    sin: Vec<f32>, // [rows, rotary_dim / 2]
}

impl Angles {
    /// Of one row.  // [rotary_dim / 2] each
    pub(crate) fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let part = row * self.pairs..(row + 1) * self.pairs;
        (&self.cos[part.clone()], &self.sin[part])
    }
}

/// Runs all rows through all layers; leaves the residual stream in `work.x` and keys and values behind each cache's
/// length, uncommitted.  // work.x [rows, hidden_size]
///
/// # Errors
/// Cancelled; nothing is committed, so every sequence is as it was.
pub fn forward(
    model: &Model,
    runs: &mut [Run<'_>],
    work: &mut Workspace,
    compute: Compute<'_>,
) -> Result<()> {
    embed(model, runs, work, compute);
    for (index, layer) in model.layers.iter().enumerate() {
        compute.cancel.check()?;
        match (model.config.residual, &layer.mlp) {
            (Residual::Parallel, Mlp::Dense(mlp)) => {
                // Both see the row as it came: the MLP's first half before attention adds to it.
                normed_input(model, layer.mlp_norm.as_ref(), mlp.up.dtype(), work, compute);
                expand(model, mlp, work, compute);
                attention(model, index, layer, runs, work, compute);
                contract(model, layer, mlp, work, compute);
            }
            (_, Mlp::Dense(mlp)) => {
                attention(model, index, layer, runs, work, compute);
                normed_input(model, layer.mlp_norm.as_ref(), mlp.up.dtype(), work, compute);
                expand(model, mlp, work, compute);
                contract(model, layer, mlp, work, compute);
            }
            (_, Mlp::Experts(mixture)) => {
                attention(model, index, layer, runs, work, compute);
                experts(model, layer, mixture, work, compute);
            }
        }
    }
    Ok(())
}

/// Logits of some rows of the residual stream.  // logits [rows.len(), model.padded_vocab()]
pub fn unembed(
    model: &Model,
    rows: &[usize],
    work: &mut Workspace,
    logits: &mut Vec<f32>,
    compute: Compute<'_>,
) {
    let Workspace { x, input, .. } = work;
    let hidden_size = model.config.hidden_size;
    let row = |r: usize| &x[rows[r] * hidden_size..][..hidden_size];
    input.fill(
        rows.len(),
        hidden_size,
        model.unembedding().dtype(),
        compute.kernels,
        compute.pool,
        |r, out| {
            apply(model, row(r), Some(&model.norm), out, compute.kernels);
        },
    );
    logits.resize(rows.len() * model.padded_vocab(), 0.0);
    model.unembedding().matmul(input, compute.kernels, compute.pool, Epilogue::Store(logits));
    finish_logits(model, logits, compute);
}

/// logits = cap * tanh(scale * logits / cap), as far as the model has either.
fn finish_logits(model: &Model, logits: &mut [f32], compute: Compute<'_>) {
    let (scale, kernels) = (model.config.logit_scale, compute.kernels);
    match model.config.final_logit_softcapping {
        None if scale == 1.0 => {}
        None => by_rows(compute.pool, logits, model.padded_vocab(), |_, row| kernels.scale(row, scale)),
        Some(cap) => {
            by_rows(compute.pool, logits, model.padded_vocab(), |_, row| kernels.softcap(row, scale, cap));
        }
    }
}

/// Rows of the embedding, and the angles of every row's position.
fn embed(model: &Model, runs: &[Run<'_>], work: &mut Workspace, compute: Compute<'_>) {
    let config = &model.config;
    let tokens: Vec<(u32, usize, &[Frequencies])> = runs
        .iter()
        .flat_map(|run| {
            run.ids.iter().zip(run.cache.len()..).map(|(&id, position)| (id, position, run.frequencies))
        })
        .collect();
    let first = match config.position {
        EmbeddingPosition::Rotated { first_position } => first_position,
        EmbeddingPosition::None | EmbeddingPosition::Learned => 0,
    };
    work.angles.clear();
    for (index, rope) in config.ropes.iter().enumerate() {
        let pairs = rope.rotary_dim / 2;
        let (mut cos, mut sin) = (vec![0.0; tokens.len() * pairs], vec![0.0; tokens.len() * pairs]);
        let rows = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
        for ((_, position, frequencies), (cos, sin)) in tokens.iter().zip(rows) {
            frequencies[index].angles(position + first, cos, sin);
        }
        work.angles.push(Angles { layout: rope.layout, pairs, cos, sin });
    }
    let Workspace { x, angles, .. } = work;
    let hidden_size = config.hidden_size;
    x.resize(tokens.len() * hidden_size, 0.0);
    by_rows(compute.pool, x, hidden_size, |row, x| {
        let (id, position, _) = tokens[row];
        model.embedding().row(id as usize, x);
        if config.embedding_multiplier != 1.0 {
            compute.kernels.scale(x, config.embedding_multiplier);
        }
        match config.position {
            EmbeddingPosition::None => {}
            EmbeddingPosition::Learned => {
                compute.kernels.add(x, &model.positions[position * hidden_size..][..hidden_size]);
            }
            EmbeddingPosition::Rotated { .. } => {
                let (cos, sin) = angles[0].row(row);
                compute.kernels.rotate_pairs(x, cos, sin);
            }
        }
    });
}

/// gated = act(gate_proj(input)) * up_proj(input), or act(up_proj(input)).  // [rows, mlp.width]
pub(crate) fn expand(model: &Model, mlp: &DenseMlp, work: &mut Workspace, compute: Compute<'_>) {
    let (width, activation) = (mlp.width, model.config.activation);
    work.gated.resize(work.input.rows() * width, 0.0);
    let epilogue = match model.config.mlp {
        MlpShape::Gated => Epilogue::Gate(activation, &mut work.gated, width),
        MlpShape::Plain => Epilogue::Activate(activation, &mut work.gated, width),
    };
    mlp.up.matmul(&work.input, compute.kernels, compute.pool, epilogue);
}

/// x += down_proj(gated).
fn contract(model: &Model, layer: &Layer, mlp: &DenseMlp, work: &mut Workspace, compute: Compute<'_>) {
    let rows = work.x.len() / model.config.hidden_size;
    let Workspace { gated, input, .. } = work;
    input.take(rows, mlp.width, mlp.down.dtype(), compute.kernels, compute.pool, |row| {
        &gated[row * mlp.width..][..mlp.width]
    });
    close_branch(model, &mlp.down, layer.mlp_out_norm.as_ref(), work, compute);
}

/// x += residual_multiplier * norm(weight(input)).
pub(crate) fn close_branch(
    model: &Model,
    weight: &Weight,
    out_norm: Option<&NormWeights>,
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let Compute { kernels, pool, .. } = compute;
    if out_norm.is_none() && model.config.residual_multiplier == 1.0 {
        let epilogue = Epilogue::AddTo(&mut work.x, model.config.hidden_size);
        return weight.matmul(&work.input, kernels, pool, epilogue);
    }
    work.branch.resize(work.input.rows() * weight.padded_out(), 0.0);
    weight.matmul(&work.input, kernels, pool, Epilogue::Store(&mut work.branch));
    add_branch(model, out_norm, weight.padded_out(), work, compute);
}

/// x += residual_multiplier * norm(branch).  // work.branch [rows, stride]
pub(crate) fn add_branch(
    model: &Model,
    out_norm: Option<&NormWeights>,
    stride: usize,
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let (hidden_size, kernels) = (model.config.hidden_size, compute.kernels);
    let Workspace { x, branch, .. } = work;
    by_rows(compute.pool, x, hidden_size, |row, x| {
        SCRATCH.with_borrow_mut(|normed| {
            normed.resize(hidden_size, 0.0);
            apply(model, &branch[row * stride..][..hidden_size], out_norm, normed, kernels);
            kernels.merge(x, normed, 1.0, model.config.residual_multiplier);
        });
    });
}

thread_local! {
    /// One row on its way into the residual stream.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The normed residual stream as the next matmul's input.
pub(crate) fn normed_input(
    model: &Model,
    weights: Option<&NormWeights>,
    dtype: DType,
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let Workspace { x, input, .. } = work;
    let hidden_size = model.config.hidden_size;
    let rows = x.len() / hidden_size;
    input.fill(rows, hidden_size, dtype, compute.kernels, compute.pool, |row, out| {
        apply(model, &x[row * hidden_size..][..hidden_size], weights, out, compute.kernels);
    });
}

/// out = norm(x), or x where there is no norm.
fn apply(model: &Model, x: &[f32], weights: Option<&NormWeights>, out: &mut [f32], kernels: Kernels) {
    match weights {
        None => out.copy_from_slice(x),
        Some(NormWeights { weight, bias }) => norm(model.config.norm, x, weight, bias, out, kernels),
    }
}

/// A row's normalization.  // all [n]
pub(crate) fn norm(kind: Norm, x: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32], kernels: Kernels) {
    match kind {
        Norm::RmsNorm { eps } => kernels.rms_norm(x, weight, eps, out),
        Norm::LayerNorm { eps } => kernels.layer_norm(x, weight, bias, eps, out),
    }
}

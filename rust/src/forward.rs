//! THE forward pass: rows of tokens through the decoder, once, for chat, inspector and batch alike.
//!
//! [`forward`] takes *runs* of consecutive tokens, of any number of sequences, as one block of rows: embed, then per
//! layer attention and MLP on the residual stream, each behind its norm. [`unembed`] turns the rows that somebody wants
//! to read into logits. Keys and values go through the cache in its type, also those of the rows at hand, so a row's
//! result does not depend on how its sequence was cut into runs (law 1).
//!
//! Shapes: `rows` = tokens of all runs; x `[rows, hidden_size]`; q `[rows, num_heads, head_dim]`; k and v
//! `[rows, num_kv_heads, head_dim]`.

use crate::activations::{Activations, by_rows};
use crate::attention::attend;
use crate::config::{Activation, Norm};
use crate::error::Result;
use crate::kernel::Kernels;
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::model::{Layer, Model};
use crate::parallel::{CancelToken, Pool};
use crate::quant::DType;
use crate::rope::Frequencies;
use crate::weight::Epilogue;

/// Consecutive tokens of one sequence.
pub struct Run<'a> {
    /// Token ids; the first stands at position `cache.len()`.
    pub ids: &'a [u32],
    /// The sequence's cache, with room reserved for the ids.
    pub cache: &'a mut KvSequence,
    /// Rotation frequencies, those of the sequence's length.
    pub frequencies: &'a Frequencies,
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
    input: Activations,
    qkv: Vec<f32>,   // [rows, padded (num_heads + 2 num_kv_heads) * head_dim]
    heads: Vec<f32>, // [num_kv_heads, rows, group_size * head_dim]
    gated: Vec<f32>, // [rows, intermediate_size]
    cos: Vec<f32>,   // [rows, rotary_dim / 2]
    sin: Vec<f32>,   // [rows, rotary_dim / 2]
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
        attention(model, index, layer, runs, work, compute);
        mlp(model, layer, work, compute);
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
            norm(model, row(r), &model.norm, out, compute.kernels);
        },
    );
    logits.resize(rows.len() * model.padded_vocab(), 0.0);
    model.unembedding().matmul(input, compute.kernels, compute.pool, Epilogue::Store(logits));
}

/// Rows of the embedding, and the angles of every row's position.
fn embed(model: &Model, runs: &[Run<'_>], work: &mut Workspace, compute: Compute<'_>) {
    let tokens: Vec<(u32, usize, &Frequencies)> = runs
        .iter()
        .flat_map(|run| {
            run.ids.iter().zip(run.cache.len()..).map(|(&id, position)| (id, position, run.frequencies))
        })
        .collect();
    let (hidden_size, half) = (model.config.hidden_size, model.config.rope.rotary_dim / 2);
    work.x.resize(tokens.len() * hidden_size, 0.0);
    by_rows(compute.pool, &mut work.x, hidden_size, |row, x| {
        model.embedding().row(tokens[row].0 as usize, x)
    });
    work.cos.resize(tokens.len() * half, 0.0);
    work.sin.resize(tokens.len() * half, 0.0);
    let angles = work.cos.chunks_exact_mut(half).zip(work.sin.chunks_exact_mut(half));
    for ((_, position, frequencies), (cos, sin)) in tokens.iter().zip(angles) {
        frequencies.angles(*position, cos, sin);
    }
}

/// x += o_proj(attention(norm(x))).
fn attention(
    model: &Model,
    index: usize,
    layer: &Layer,
    runs: &mut [Run<'_>],
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let Compute { kernels, pool, .. } = compute;
    let (config, rows) = (&model.config, work.x.len() / model.config.hidden_size);
    normed_input(model, &layer.input_layernorm, layer.qkv_proj.dtype(), work, compute);
    work.qkv.resize(rows * layer.qkv_proj.padded_out(), 0.0);
    layer.qkv_proj.matmul(&work.input, kernels, pool, Epilogue::Store(&mut work.qkv));
    rotate_and_store(model, index, layer, runs, work, compute);

    let caches: Vec<(&KvSequence, usize)> = runs.iter().map(|run| (&*run.cache, run.ids.len())).collect();
    let group_width = config.group_size() * config.head_dim;
    work.heads.resize(rows * config.num_attention_heads * config.head_dim, 0.0);
    attend(model, index, &caches, &work.qkv, layer.qkv_proj.padded_out(), &mut work.heads, compute);

    let Workspace { heads, input, .. } = work;
    let width = config.num_attention_heads * config.head_dim;
    input.fill(rows, width, layer.o_proj.dtype(), kernels, pool, |row, out| {
        for (head, out) in out.chunks_exact_mut(group_width).enumerate() {
            out.copy_from_slice(&heads[(head * rows + row) * group_width..][..group_width]);
        }
    });
    layer.o_proj.matmul(&work.input, kernels, pool, Epilogue::AddTo(&mut work.x, config.hidden_size));
}

/// x += down_proj(act(gate_proj(norm(x))) * up_proj(norm(x))).
fn mlp(model: &Model, layer: &Layer, work: &mut Workspace, compute: Compute<'_>) {
    let Compute { kernels, pool, .. } = compute;
    let (config, rows) = (&model.config, work.x.len() / model.config.hidden_size);
    let width = config.intermediate_size;
    normed_input(model, &layer.post_attention_layernorm, layer.gate_up_proj.dtype(), work, compute);
    work.gated.resize(rows * width, 0.0);
    let epilogue = match config.activation {
        Activation::Silu => Epilogue::SiluGate(&mut work.gated, width),
    };
    layer.gate_up_proj.matmul(&work.input, kernels, pool, epilogue);
    let Workspace { gated, input, .. } = work;
    input.fill(rows, width, layer.down_proj.dtype(), kernels, pool, |row, out| {
        out.copy_from_slice(&gated[row * width..][..width]);
    });
    layer.down_proj.matmul(&work.input, kernels, pool, Epilogue::AddTo(&mut work.x, config.hidden_size));
}

/// The normed residual stream as the next matmul's input.
fn normed_input(model: &Model, weight: &[f32], dtype: DType, work: &mut Workspace, compute: Compute<'_>) {
    let Workspace { x, input, .. } = work;
    let hidden_size = model.config.hidden_size;
    let rows = x.len() / hidden_size;
    input.fill(rows, hidden_size, dtype, compute.kernels, compute.pool, |row, out| {
        norm(model, &x[row * hidden_size..][..hidden_size], weight, out, compute.kernels);
    });
}

fn norm(model: &Model, x: &[f32], weight: &[f32], out: &mut [f32], kernels: Kernels) {
    match model.config.norm {
        Norm::RmsNorm { eps } => kernels.rms_norm(x, weight, eps, out),
    }
}

/// Rows of one run that fall into one block.
struct Segment<'a> {
    qkv: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    block: &'a mut Block,
    slot: usize,
}

/// Rotates q and k in place and stores k and v in the cache's blocks.
fn rotate_and_store(
    model: &Model,
    index: usize,
    layer: &Layer,
    runs: &mut [Run<'_>],
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let (stride, half) = (layer.qkv_proj.padded_out(), model.config.rope.rotary_dim / 2);
    let mut segments = Vec::new();
    let (mut qkv, mut cos, mut sin) = (&mut work.qkv[..], &work.cos[..], &work.sin[..]);
    for run in runs {
        let (mut slot, mut left) = (run.cache.len() % BLOCK, run.ids.len());
        for block in run.cache.writable() {
            let rows = left.min(BLOCK - slot);
            let (head, tail) = std::mem::take(&mut qkv).split_at_mut(rows * stride);
            segments.push(Segment {
                qkv: head,
                cos: &cos[..rows * half],
                sin: &sin[..rows * half],
                block,
                slot,
            });
            (qkv, cos, sin) = (tail, &cos[rows * half..], &sin[rows * half..]);
            (slot, left) = (0, left - rows);
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "the caller reserved room for every row");
    }
    compute
        .pool
        .for_each(&mut segments, |segment| store_segment(model, index, stride, segment, compute.kernels));
}

fn store_segment(model: &Model, index: usize, stride: usize, segment: &mut Segment<'_>, kernels: Kernels) {
    let config = &model.config;
    let (dim, rotary, half) = (config.head_dim, config.rope.rotary_dim, config.rope.rotary_dim / 2);
    let (queries, kv_heads) = (config.num_attention_heads * dim, config.num_key_value_heads);
    for (row, qkv) in segment.qkv.chunks_exact_mut(stride).enumerate() {
        let (cos, sin) = (&segment.cos[row * half..][..half], &segment.sin[row * half..][..half]);
        for head in qkv[..queries + kv_heads * dim].chunks_exact_mut(dim) {
            kernels.rotate_half(&mut head[..rotary], cos, sin);
        }
        let (keys, values) = qkv[queries..][..2 * kv_heads * dim].split_at(kv_heads * dim);
        for head in 0..kv_heads {
            let part = head * dim..(head + 1) * dim;
            segment.block.write(index, head, segment.slot + row, &keys[part.clone()], &values[part], kernels);
        }
    }
}

//! Qwen 4 (qwen4_exp_text): Qwen 3.5 with hyper-connections in place of norms, an indexer that chooses blocks of positions,
//! and embeddings of hashed n-grams.
//!
//! Qwen Team 2026. Defaults of absent keys: transformers 5.23, `configuration_qwen4_exp.py`.

use super::qwen3_5::{self, hybrid, ignore_other_parts, shared_expert, text_part};
use crate::config::{
    Activation, Config, LayerSpec, LinearAttention, Mechanisms, Names, NormPlacement, Recurrent,
    ResidualFactors, Tensor, tensor,
};
use crate::family::keys::base::{Defaults, Family, KvHeads, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{moe_in_all_layers, qwen_moe};
use crate::family::keys::rope::Partial;
use crate::family::keys::windows::layer_numbers;
use crate::mechanisms::hyper::config::{HyperConnections, HyperNames, StreamWeights};
use crate::mechanisms::indexer::config::{
    IndexChoice, IndexHeads, Indexer, IndexerNames, LayerIndexer, RotatedPart,
};
use crate::mechanisms::ngram::config::{NgramEmbedding, NgramTable, primes_from};
use ropechat_platform::error::Result;

pub(crate) static QWEN4_EXP_TEXT: Family = Family { model_types: &["qwen4_exp_text"], aliases: &[], config };

pub(crate) static QWEN4_EXP: Family = Family { model_types: &["qwen4_exp"], aliases: &[], config: composite };

/// The weight of a matrix or norm of a hyper-connection.
macro_rules! weight {
    ($path:literal, $name:literal) => {
        Tensor { weight: concat!($path, ".", $name, ".weight"), bias: "" }
    };
}

/// The tensors of a hyper-connection.
macro_rules! hyper {
    ($path:literal) => {
        HyperNames::LowRank([
            weight!($path, "hc_norm"),
            weight!($path, "input_mix_weight_down"),
            weight!($path, "input_mix_weight_up"),
            weight!($path, "block_inject_weight"),
        ])
    };
}

const INDEX_QK: Tensor = tensor!("self_attn.indexer.index_qk_proj");

const NAMES: Names = Names { ..qwen3_5::NAMES };

/// Prime numbers are looked for up to here, and for so many hashes: both far beyond published files.
const MOST_ROWS: u64 = 1 << 28;
const MOST_HASHES: usize = 1 << 12;

const INDEXER: IndexerNames = IndexerNames {
    q_proj: INDEX_QK,
    k_proj: INDEX_QK,
    q_norm: tensor!("self_attn.indexer.q_layernorm"),
    k_norm: tensor!("self_attn.indexer.k_layernorm"),
    ..IndexerNames::DEEPSEEK
};

fn composite(metadata: &Metadata<'_>) -> Result<Config> {
    text_part(metadata, config)
}

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    ignore_other_parts(metadata);
    metadata.get("number_of_conv_states"); // how transformers keeps the states
    // The dense width is not used: every layer is a mixture.
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(2),
        intermediate_size: Some(1),
        rope: qwen3_5::DEFAULTS.rope.map(|rope| RopeDefaults { partial: Partial::Usually(1.0), ..rope }),
        ..qwen3_5::DEFAULTS
    };
    let config = hybrid(metadata, base(metadata, &defaults)?, &["full_attention", "indexed_attention"])?;
    let gate = gate_activation(metadata)?;
    let recurrent = match config.recurrent {
        Some(Recurrent::Linear(linear)) => Some(Recurrent::Linear(LinearAttention { gate, ..linear })),
        other => other,
    };
    let moe = qwen_moe(metadata, 10, shared_expert(metadata)?, true)?;
    let hyper_connections = HyperConnections {
        hc_mult: metadata.integer_if_any("hc_count", 2..=64)?.unwrap_or(4),
        weights: StreamWeights::LowRank {
            hc_lowrank: metadata.integer_if_any("hc_lowrank", 1..=1 << 16)?.unwrap_or(320),
        },
        names: [
            hyper!("attn_hyper_connection"),
            hyper!("mlp_hyper_connection"),
            hyper!("hyper_connection_mixer"),
        ],
    };
    let mut config = Config {
        recurrent,
        norm_placement: NormPlacement::None,
        mechanisms: Mechanisms { hyper: Some(hyper_connections), ..Mechanisms::default() },
        ..moe_in_all_layers(config, moe)
    };
    // A branch's result goes to the streams: nothing of what it read stays beside it.
    for layer in &mut config.layers {
        layer.residual_factors = [ResidualFactors { stream: 0.0, branch: 1.0 }; 2];
    }
    with_ngrams(metadata, with_indexers(metadata, config)?)
}

/// What the gate of linear attention passes: silu or sigmoid, as `hidden_act` unless it is stated.
fn gate_activation(metadata: &Metadata<'_>) -> Result<Activation> {
    const KEYS: [&str; 2] = ["output_gate_type", "hidden_act"];
    let key = if metadata.get(KEYS[0]).is_some() { KEYS[0] } else { KEYS[1] };
    match metadata.text_if_any(key)? {
        None | Some("silu") => Ok(Activation::Silu),
        Some("sigmoid") => Ok(Activation::Sigmoid),
        Some(other) => {
            let other = crate::checkpoint::escape_for_terminal(other);
            Err(metadata.unsupported(key, &format!("must be silu or sigmoid (got \"{other}\")")))
        }
    }
}

/// An indexer in every layer with attention.
fn with_indexers(metadata: &Metadata<'_>, mut config: Config) -> Result<Config> {
    if config.layers.iter().all(|layer| !layer.mixer.has_attention()) {
        for key in ["n_heads", "kv_heads", "head_dim", "budget", "compress_ratio"] {
            metadata.get(&format!("indexer_{key}"));
        }
        return Ok(config);
    }
    let stated = |key: &str| metadata.integer(key, 1..=1 << 16);
    let (budget, compress_ratio) = (stated("indexer_budget")?, stated("indexer_compress_ratio")?);
    if !budget.is_multiple_of(compress_ratio) {
        let what = format!("must be a multiple of indexer_compress_ratio, {compress_ratio} (got {budget})");
        return Err(metadata.bad("indexer_budget", &what));
    }
    let key_heads = stated("indexer_kv_heads")?;
    if key_heads != 1 {
        return Err(metadata.unsupported("indexer_kv_heads", &format!("must be 1 (got {key_heads})")));
    }
    let indexer = IndexHeads {
        index_n_heads: stated("indexer_n_heads")?,
        index_head_dim: stated("indexer_head_dim")?,
        norm: config.norm,
        rope: 0,
        rotated: RotatedPart::First,
    };
    if config.ropes[0].rotary_dim > indexer.index_head_dim {
        let what = format!(
            "must be at least the rotated part of a head, {} (got {})",
            config.ropes[0].rotary_dim, indexer.index_head_dim
        );
        return Err(metadata.bad("indexer_head_dim", &what));
    }
    let of_layer = |layer: &LayerSpec| match layer.mixer.has_attention() {
        true => LayerIndexer::Full,
        false => LayerIndexer::None,
    };
    config.mechanisms.indexer = Some(Indexer {
        heads: indexer,
        choice: IndexChoice::MeanBlocks { compress_ratio, topk_blocks: budget / compress_ratio },
        names: INDEXER,
        layers: config.layers.iter().map(of_layer).collect(),
    });
    Ok(config)
}

/// Embeddings of n-grams in the layers of `ple_layer_ids`, which counts from 1.
fn with_ngrams(metadata: &Metadata<'_>, mut config: Config) -> Result<Config> {
    const LAYERS: &str = "ple_layer_ids";
    let stated = |key: &str, most: u64, usual: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=most)?.unwrap_or(usual))
    };
    let ngram_size = stated("ngram_size", 64, 3)?;
    let heads_per_ngram = stated("heads_per_ngram", 1 << 12, 8)?;
    let ple_embed_dim = stated("ple_embed_dim", 1 << 20, config.hidden_size)?;
    let ple_conv_kernel_size = stated("ple_conv_kernel_size", 256, 4)?;
    let base = stated("ngram_vocab_size_base", MOST_ROWS, 20_000_000)?;
    let divisible_by = stated("make_ngram_vocab_size_divisible_by", 1 << 24, 128)?;
    let split_ngram_parts = stated("split_ngram_parts", 1 << 16, 512)?;
    let seed = metadata.integer_if_any("seed", 0..=u64::MAX >> 1)?.unwrap_or(1234) as u64;
    let mut layers = layer_numbers(metadata, LAYERS)?;
    layers.sort_unstable();
    layers.dedup();
    if layers.is_empty() {
        return Ok(config);
    }
    let streams = config.mechanisms.hyper.map_or(1, |hyper| hyper.hc_mult);
    let hashes = (ngram_size - 1) * heads_per_ngram;
    if hashes == 0 || !ple_embed_dim.is_multiple_of(hashes) {
        let what = format!("must be a multiple of the number of hashes, {hashes} (got {ple_embed_dim})");
        return Err(metadata.bad("ple_embed_dim", &what));
    }
    if hashes * layers.len() > MOST_HASHES {
        let what = format!("must make at most {MOST_HASHES} hashes (got {})", hashes * layers.len());
        return Err(metadata.bad("heads_per_ngram", &what));
    }
    let Some(&eos_token_id) = config.eos_token_id.first() else {
        return Err(metadata.bad("eos_token_id", "it is missing; embeddings of n-grams need it"));
    };
    let mut tables = Vec::new();
    let mut primes = primes_from(base);
    for (index, &number) in layers.iter().enumerate() {
        let is_recurrent =
            |layer: &usize| config.layers.get(*layer).is_some_and(|layer| !layer.mixer.has_attention());
        let Some(layer) = number.checked_sub(1).filter(is_recurrent) else {
            let what = format!("must name layers of linear attention, the first one as 1 (got {number})");
            return Err(metadata.bad(LAYERS, &what));
        };
        let sizes = [ngram_size, hashes];
        tables.push(NgramTable::new(
            [index, layer],
            config.vocab_size,
            seed,
            sizes,
            &mut primes,
            divisible_by,
        ));
    }
    let ngram_embedding = NgramEmbedding {
        ngram_size,
        heads_per_ngram,
        ple_embed_dim,
        ple_conv_kernel_size,
        split_ngram_parts,
        eos_token_id,
        channels: streams * config.hidden_size,
        tables,
    };
    config.mechanisms.ngram = Some(ngram_embedding);
    Ok(config)
}

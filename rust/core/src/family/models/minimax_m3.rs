//! MiniMax M3, text: norms per head, half of a head rotated, an indexer that chooses blocks of positions in some layers,
//! experts chosen by their sigmoid with a bias, a clamped SwiGLU.
//!
//! MiniMax 2026 (M3). Defaults of absent keys: transformers 5.23, `configuration_minimax_m3_vl.py`; `hidden_act` is not used
//! there.

use crate::config::{
    Activation, Bias, Config, GateUp, Moe, MoeNames, Names, NormWeight, QkNorm, Scoring, Shared,
    SharedExpert, Stored, Tensor, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{
    experts_per_token, ignore_multi_token_prediction, shared_width, sparse_layers,
};
use crate::family::keys::rope::Partial;
use crate::family::keys::windows::{layer_kinds, layer_numbers};
use crate::mechanisms::indexer::config::{
    IndexChoice, IndexHeads, Indexer, IndexerNames, LayerIndexer, RotatedPart,
};
use ropechat_platform::error::Result;

pub(crate) static MINIMAX_M3_VL_TEXT: Family =
    Family { model_types: &["minimax_m3_vl_text"], aliases: &[("num_local_experts", "num_experts")], config };

const NAMES: Names = Names {
    gate_up_proj: GateUp::Stacked(tensor!("mlp.gate_up_proj")),
    moe: MoeNames::Fused {
        router: tensor!("mlp.gate"),
        gate_up: Tensor { weight: "mlp.experts.gate_up_proj", bias: "" },
        down: Tensor { weight: "mlp.experts.down_proj", bias: "" },
        stored: Stored::OutIn,
        shared: Shared {
            gate_up: GateUp::Stacked(tensor!("mlp.shared_experts.gate_up_proj")),
            down: tensor!("mlp.shared_experts.down_proj"),
        },
    },
    ..Names::LLAMA
};

const INDEXER: IndexerNames = IndexerNames {
    q_proj: tensor!("self_attn.indexer.q_proj"),
    k_proj: tensor!("self_attn.indexer.k_proj"),
    ..IndexerNames::DEEPSEEK
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(4),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 524_288,
        intermediate_size: Some(3072),
        attention_bias: BiasKey::Fixed(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { theta: 5e6, partial: Partial::Usually(1.0), ..RopeDefaults::WHOLE }),
        activation_key: "",
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    // transformers goes by `partial_rotary_factor` alone.
    let rotated = config.ropes.first().map_or(config.head_dim, |rope| rope.rotary_dim);
    if let Some(dim) = metadata.integer_if_any("rotary_dim", 2..=1 << 13)?
        && dim != rotated
    {
        let what =
            format!("{dim} here, and {rotated} by partial_rotary_factor of rope_parameters; they must agree");
        return Err(metadata.bad("rotary_dim", &what));
    }
    metadata.get("hidden_act");
    let num_experts = metadata.integer_if_any("num_local_experts", 1..=1 << 16)?.unwrap_or(128);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(4))?;
    let moe = Moe {
        scoring: Scoring::Sigmoid,
        correction_bias: Bias::Added,
        scaling: metadata.number_or("routed_scaling_factor", 1e-6..=1e6, 2.0)? as f32,
        shared: match shared_width(metadata, "shared_intermediate_size", 3072)? {
            SharedExpert::None => {
                return Err(metadata.bad("shared_intermediate_size", "must be positive (got 0)"));
            }
            shared => shared,
        },
        ..Moe::plain(num_experts, per_token, config.intermediate_size)
    };
    ignore_multi_token_prediction(metadata);
    let intermediate_size =
        metadata.integer_if_any("dense_intermediate_size", 1..=1 << 24)?.unwrap_or(12_288);
    let activation = Activation::ClampedSwiglu {
        alpha: metadata.number_or("swiglu_alpha", 1e-6..=1e6, 1.702)? as f32,
        limit: metadata.number_or("swiglu_limit", 1e-6..=1e9, 7.0)? as f32,
        offset: 1.0,
    };
    let config = Config {
        moe: Some(moe),
        intermediate_size,
        activation,
        norm_weight: NormWeight::MinusOne,
        qk_norm: QkNorm::PerHead(Bias::None),
        ..config
    };
    with_indexers(metadata, sparse_layers(metadata, config, 0)?)
}

/// The indexer: its own keys, or (as published) in `sparse_attention_config` under other names.
fn with_indexers(metadata: &Metadata<'_>, mut config: Config) -> Result<Config> {
    let old = metadata.object_if_any("sparse_attention_config")?;
    let stated = |key: &str, old_key: &str, usual: usize| -> Result<usize> {
        let own = metadata.integer_if_any(key, 0..=1 << 16)?;
        let inner = match &old {
            Some(old) => old.integer_if_any(old_key, 0..=1 << 16)?,
            None => None,
        };
        match inner.or(own).unwrap_or(usual) {
            0 if key != "index_local_blocks" => Err(metadata.bad(key, "must be at least 1 (got 0)")),
            number => Ok(number),
        }
    };
    let indexer = IndexHeads {
        index_n_heads: stated("index_n_heads", "sparse_num_index_heads", 4)?,
        index_head_dim: stated("index_head_dim", "sparse_index_dim", 128)?,
        norm: config.norm,
        rope: 0,
        rotated: RotatedPart::First,
    };
    let choice = IndexChoice::Blocks {
        index_block_size: stated("index_block_size", "sparse_block_size", 128)?,
        index_topk_blocks: stated("index_topk_blocks", "sparse_topk_blocks", 16)?,
        index_local_blocks: stated("index_local_blocks", "sparse_local_block", 1)?,
    };
    let kinds = layer_kinds(metadata, config.layers.len(), &["full_attention", "minimax_m3_sparse"])?;
    let listed = match &old {
        Some(old) => layer_numbers(old, "sparse_attention_freq")?,
        None => Vec::new(),
    };
    let kinds = kinds.unwrap_or(listed);
    if kinds.iter().all(|&kind| kind == 0) {
        return Ok(config);
    }
    if kinds.len() != config.layers.len() {
        let what = format!("must have one number per layer, {} (got {})", config.layers.len(), kinds.len());
        return Err(metadata.bad("sparse_attention_config.sparse_attention_freq", &what));
    }
    if !config.num_key_value_heads.is_multiple_of(indexer.index_n_heads) {
        let what = format!(
            "must be a divisor of num_key_value_heads, {} (got {})",
            config.num_key_value_heads, indexer.index_n_heads
        );
        return Err(metadata.unsupported("index_n_heads", &what));
    }
    if config.ropes[0].rotary_dim > indexer.index_head_dim {
        let what = format!(
            "must be at least rotary_dim, {} (got {})",
            config.ropes[0].rotary_dim, indexer.index_head_dim
        );
        return Err(metadata.bad("index_head_dim", &what));
    }
    let of_kind = |&kind: &usize| if kind == 0 { LayerIndexer::None } else { LayerIndexer::Full };
    let layers = kinds.iter().map(of_kind).collect();
    config.mechanisms.indexer = Some(Indexer { heads: indexer, choice, names: INDEXER, layers });
    Ok(config)
}

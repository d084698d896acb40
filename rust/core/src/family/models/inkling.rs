//! Inkling: attention without rotation, with learned scores by distance, and short convolutions of keys, values and of what
//! attention and the MLP add.
//!
//! Thinking Machines 2026. Defaults of absent keys: transformers 5.23, `configuration_inkling.py`, which also reads older names
//! of keys. The reference does not use `shared_expert_sink` and `rms_norm_eps_moe_gate`, and ties no embeddings.

use crate::config::{
    Activation, Bias, Config, EmbeddingNorm, GateUp, Heads, LmHead, Mask, Mechanisms, Mixer, Moe, MoeNames,
    Names, QkNorm, QueryScaling, Recurrent, RelativeScores, Scoring, Shared, SharedExpert, Stored, Tensor,
    Window, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, ignore_multi_token_prediction, sparse_layers};
use crate::family::keys::windows::{layer_kinds, layer_numbers};
use crate::mechanisms::branch_convolution::config::BranchConvolutions;
use ropechat_platform::error::Result;

pub(crate) static INKLING_TEXT: Family =
    Family { model_types: &["inkling_text"], aliases: &[("sliding_window", "sliding_window_size")], config };

const NAMES: Names = Names {
    embedding_norm: tensor!("embed_tokens.embed_norm"),
    moe: MoeNames::Fused {
        router: tensor!("mlp.gate"),
        gate_up: Tensor { weight: "mlp.experts.gate_up_proj", bias: "" },
        down: Tensor { weight: "mlp.experts.down_proj", bias: "" },
        stored: Stored::OutIn,
        shared: Shared {
            gate_up: GateUp::Separate {
                gate: Tensor { weight: "mlp.shared_experts.gate_proj", bias: "" },
                up: Tensor { weight: "mlp.shared_experts.up_proj", bias: "" },
            },
            down: Tensor { weight: "mlp.shared_experts.down_proj", bias: "" },
        },
    },
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    vocab_size: Some(201_024),
    num_attention_heads: Some(64),
    num_hidden_layers: Some(66),
    intermediate_size: Some(24_576),
    num_key_value_heads: KvHeads::Usually(8),
    head_dim: HeadDim::Usually(128),
    max_position_embeddings: 131_072,
    norm: NormKey::Rms("rms_norm_eps", 1e-6),
    activation_key: "hidden_act",
    activation: Activation::Silu,
    lm_head: LmHead::Own,
    attention_bias: BiasKey::Fixed(Bias::None),
    attention_out_bias: BiasKey::Fixed(Bias::None),
    mlp_bias: BiasKey::Absent(Bias::None),
    rope: None,
    windows: WindowKeys::OfFamily,
};

/// Keys of layers that predict further tokens, and keys that the reference does not use.
const WITHOUT_EFFECT: [&str; 6] = [
    "number_of_conv_states",
    "shared_expert_sink",
    "rms_norm_eps_moe_gate",
    "chain_hidden_post_norm",
    "mtp_hidden_states_first",
    "mtp_local_layer_ids",
];

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let mut config = base(metadata, &DEFAULTS)?;
    WITHOUT_EFFECT.iter().for_each(|key| _ = metadata.get(key));
    ignore_multi_token_prediction(metadata);
    let size = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 20)?.unwrap_or(default))
    };
    if let Some(rows) = metadata.integer_if_any("unpadded_vocab_size", 1..=1 << 26)?
        && rows < config.vocab_size
    {
        config.stored_vocab_size = Some(config.vocab_size);
        config.vocab_size = rows;
        config.eos_token_id.retain(|&id| (id as usize) < rows);
        config.bos_token_id = config.bos_token_id.filter(|&id| (id as usize) < rows);
    }
    let config = windows_and_heads(metadata, config)?;
    let kernel_size = size("conv_kernel_size", size("sconv_kernel_size", 4)?)?;
    let kv_channels = config.all_heads().map(|heads| 2 * heads.num_key_value_heads * heads.head_dim).max();
    let kv_channels = kv_channels.unwrap_or_default();
    let alpha = metadata.number_or("log_scaling_alpha", -1e3..=1e3, 0.1)?;
    let n_floor = metadata.number_if_any("log_scaling_n_floor", 1.0..=1e12)?;
    let (intermediate_size, moe) = mixture(metadata, config.intermediate_size)?;
    let first_sparse = metadata.integer_if_any("dense_mlp_idx", 0..=1 << 16)?.unwrap_or(0);
    let divisor = metadata.number_or("logits_mup_width_multiplier", 1e-6..=1e6, 24.0)?;
    Ok(Config {
        intermediate_size,
        lm_head: LmHead::Own,
        logit_scale: (1.0 / divisor) as f32,
        embedding_norm: EmbeddingNorm::Normed,
        qk_norm: QkNorm::PerHead(Bias::None),
        attention_multiplier: 1.0,
        query_scaling: n_floor
            .map_or(QueryScaling::None, |n_floor| QueryScaling::LogWhereUnwindowed { alpha, n_floor }),
        relative_scores: Some(RelativeScores {
            d_rel: size("d_rel", 16)?,
            rel_extent: size("rel_extent", 1024)?,
        }),
        recurrent: Some(Recurrent::Window(Window {
            values: kv_channels + 2 * config.hidden_size,
            positions: kernel_size - 1,
        })),
        mechanisms: Mechanisms {
            branch_convolution: Some(BranchConvolutions { kernel_size, kv_channels }),
            ..Mechanisms::default()
        },
        moe: Some(moe),
        ..sparse_layers(metadata, config, first_sparse)?
    })
}

/// The width of dense MLPs, and the mixture.
fn mixture(metadata: &Metadata<'_>, intermediate_size: usize) -> Result<(usize, Moe)> {
    // In files with this key intermediate_size is the width of the experts.
    let dense = metadata.integer_if_any("dense_intermediate_size", 1..=1 << 24)?;
    let stated = metadata.integer_if_any("moe_intermediate_size", 1..=1 << 24)?;
    let (dense, width) = match dense {
        Some(dense) => (dense, intermediate_size),
        None => (intermediate_size, stated.unwrap_or(3072)),
    };
    let count = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(default))
    };
    let num_experts = count("n_routed_experts", 256)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(6))?;
    let moe = Moe {
        scoring: Scoring::Sigmoid,
        correction_bias: Bias::Added,
        scaling: metadata.number_or("route_scale", 1e-6..=1e6, 8.0)? as f32,
        shared: SharedExpert::Scored { count: count("n_shared_experts", 2)? },
        ..Moe::plain(num_experts, per_token, width)
    };
    Ok((dense, moe))
}

/// Which layers have a window, and the heads of both kinds.
fn windows_and_heads(metadata: &Metadata<'_>, mut config: Config) -> Result<Config> {
    let size = |key: &str, most: u64, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=most)?.unwrap_or(default))
    };
    let window = size("sliding_window", 1 << 20, 512)?;
    let head_dim = size("swa_head_dim", 1 << 13, 128)?;
    let windowed = Heads {
        num_attention_heads: size("swa_num_attention_heads", 1 << 16, 64)?,
        num_key_value_heads: size("swa_num_key_value_heads", 1 << 16, 16)?,
        head_dim,
        v_head_dim: head_dim,
    };
    if !windowed.num_attention_heads.is_multiple_of(windowed.num_key_value_heads) {
        let what = format!(
            "must be a divisor of swa_num_attention_heads, {} (got {})",
            windowed.num_attention_heads, windowed.num_key_value_heads
        );
        return Err(metadata.bad("swa_num_key_value_heads", &what));
    }
    let listed = match metadata.get("local_layer_ids").is_some() {
        true => Some(layer_numbers(metadata, "local_layer_ids")?),
        false => None,
    };
    let kinds = layer_kinds(metadata, config.layers.len(), &["hybrid", "hybrid_sliding"])?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let slides = match (&kinds, &listed) {
            (Some(kinds), _) => kinds[index] == 1,
            (None, Some(listed)) => listed.contains(&index),
            (None, None) => !(index + 1).is_multiple_of(6),
        };
        layer.mixer = Mixer::AttentionWithWindow;
        (layer.mask, layer.heads) =
            if slides { (Mask::Sliding(window), Some(windowed)) } else { (Mask::Causal, None) };
        // Queries and keys are normed: 1 / head_dim, not its root.
        layer.attention_scale = 1.0 / if slides { head_dim } else { config.head_dim } as f32;
    }
    Ok(config)
}

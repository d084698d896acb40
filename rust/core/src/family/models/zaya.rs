//! ZAYA: compressed convolutional attention, a router with an MLP whose state passes from layer to layer, and learned scales
//! where branches are added.
//!
//! Zyphra 2025 (ZAYA1; Figliolia et al. 2025, <https://arxiv.org/abs/2510.04476>). Defaults of absent keys: transformers 5.23,
//! `configuration_zaya.py`. One expert per token, or none.

use crate::checkpoint::escape_for_terminal;
use crate::config::{
    Activation, Bias, Config, GateUp, LmHead, Mask, Mechanisms, Mixer, Moe, MoeNames, Names, Normalization,
    QkNorm, Qkv, Recurrent, Residual, RopeLayout, Router, Shared, Stored, Tensor, Window, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, moe_in_all_layers};
use crate::family::keys::rope::{Partial, RopeFacts, ropes_by_kind};
use crate::family::keys::windows::{window, with_ropes};
use crate::mechanisms::qk_convolution::config::QkConvolution;
use ropechat_platform::error::Result;

pub(crate) static ZAYA: Family =
    Family { model_types: &["zaya"], aliases: &[("num_experts", "num_local_experts")], config };

const NAMES: Names = Names {
    qkv: Qkv::Delayed([
        tensor!("self_attn.qkv_proj.q_proj"),
        tensor!("self_attn.qkv_proj.k_proj"),
        tensor!("self_attn.qkv_proj.v_proj_current"),
        tensor!("self_attn.qkv_proj.v_proj_delayed"),
    ]),
    k_norm: Tensor { weight: "self_attn.qk_norm.temp", bias: "" },
    moe: MoeNames::Fused {
        router: tensor!("mlp.gate.router_mlp.out_proj"),
        gate_up: Tensor { weight: "mlp.experts.gate_up_proj", bias: "" },
        down: Tensor { weight: "mlp.experts.down_proj", bias: "" },
        stored: Stored::OutIn,
        shared: Shared { gate_up: GateUp::Stacked(tensor!("")), down: tensor!("") },
    },
    correction_bias: "mlp.gate.balancing_biases",
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    vocab_size: Some(262_272),
    num_attention_heads: Some(8),
    num_hidden_layers: Some(40),
    // There is no dense MLP.
    intermediate_size: Some(1),
    num_key_value_heads: KvHeads::Usually(2),
    head_dim: HeadDim::Usually(128),
    max_position_embeddings: 131_072,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    activation_key: "hidden_act",
    activation: Activation::Silu,
    lm_head: LmHead::Tied,
    attention_bias: BiasKey::Key("attention_bias", false),
    attention_out_bias: BiasKey::Key("attention_bias", false),
    mlp_bias: BiasKey::Absent(Bias::None),
    rope: None,
    windows: WindowKeys::OfFamily,
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let mut config = base(metadata, &DEFAULTS)?;
    let window = window(metadata, None)?;
    let words = metadata.texts_if_any("layer_types")?.unwrap_or_else(|| vec!["hybrid"; config.layers.len()]);
    if words.len() != config.layers.len() {
        let what = format!("must have one entry per layer, {} (got {})", config.layers.len(), words.len());
        return Err(metadata.bad("layer_types", &what));
    }
    for (layer, word) in config.layers.iter_mut().zip(words) {
        layer.mixer = Mixer::AttentionWithWindow;
        layer.mask = match (word, window) {
            ("hybrid", _) => Mask::Causal,
            ("hybrid_sliding", Some(window)) => Mask::Sliding(window),
            ("hybrid_sliding", None) => {
                return Err(metadata.bad("sliding_window", "it is missing; a number of positions is needed"));
            }
            (other, _) => {
                let what =
                    format!("must be hybrid or hybrid_sliding (got \"{}\")", escape_for_terminal(other));
                return Err(metadata.unsupported("layer_types", &what));
            }
        };
    }
    let facts = |theta| RopeFacts {
        theta,
        head_dim: config.head_dim,
        partial: Partial::Usually(0.5),
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let kinds = ["hybrid", "hybrid_sliding"];
    let thetas = ["rope_theta", "rope_local_base_freq"];
    let ropes = ropes_by_kind(metadata, kinds, thetas, [facts(5e6), facts(1e4)])?;
    let size = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(default))
    };
    let values = config.num_key_value_heads * config.head_dim;
    if !values.is_multiple_of(2) {
        return Err(metadata.bad("head_dim", "the values of all heads must be an even number"));
    }
    let convolution = QkConvolution {
        channels: config.num_attention_heads * config.head_dim + values + values / 2,
        depthwise_size: size("cca_time0", 2)?,
        grouped_size: size("cca_time1", 2)?,
    };
    let num_experts = size("num_experts", 16)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(1))?;
    if per_token != 1 {
        return Err(metadata.unsupported("num_experts_per_tok", &format!("must be 1 (got {per_token})")));
    }
    let width = metadata.integer_if_any("moe_intermediate_size", 1..=1 << 24)?.unwrap_or(2048);
    let moe = Moe {
        correction_bias: Bias::Added,
        normalization: Normalization::None,
        router: Router::Mlp { hidden_size: size("router_hidden_size", 256)? },
        ..Moe::plain(num_experts, 1, width)
    };
    let lm_head_bias = if metadata.flag_or("lm_head_bias", false)? { Bias::Added } else { Bias::None };
    Ok(Config {
        residual: Residual::Scaled,
        qk_norm: QkNorm::Length,
        recurrent: Some(Recurrent::Window(Window {
            values: convolution.channels,
            positions: convolution.positions(),
        })),
        mechanisms: Mechanisms { qk_convolution: Some(convolution), ..Mechanisms::default() },
        lm_head_bias,
        ..with_ropes(moe_in_all_layers(config, moe), ropes)
    })
}

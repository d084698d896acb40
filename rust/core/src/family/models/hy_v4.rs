//! Hunyuan 4 (hy_v4): latent attention with an indexer, sinks and a gate, hyper-connections, experts that are routed as in
//! DeepSeek V3.
//!
//! Tencent 2026. Defaults of absent keys: transformers 5.23, `configuration_hy_v4.py`; the latents' norms have the epsilon
//! 1e-6 regardless of the file, and there are as many key/value heads as query heads.

use super::deepseek::config as latent_mixture;
use crate::config::{
    Activation, AttentionGate, Config, GateUp, GateWidth, Mechanisms, Moe, MoeNames, Names, Norm,
    ResidualFactors, RopeLayout, Shared, Sinks, Stored, Tensor, tensor,
};
use crate::family::keys::base::{Defaults, Family, KvHeads, NormKey};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::{MlaDefaults, Rotation};
use crate::family::keys::moe::Routing;
use crate::mechanisms::hyper::config::{HyperConnections, HyperNames, StreamWeights};
use crate::mechanisms::indexer::config::RotatedPart;
use crate::mechanisms::indexer::family::keys::{IndexerDefaults, indexer_in_all_layers};
use ropechat_platform::error::Result;

pub(crate) static HY_V4: Family = Family { model_types: &["hy_v4"], aliases: &[], config };

const NAMES: Names = Names {
    attention_gate: tensor!("self_attn.linear_gate"),
    sinks: "self_attn.learnable_sink_param",
    gate_up_proj: GateUp::Separate { gate: tensor!("mlp.linear_gate"), up: tensor!("mlp.up_proj") },
    moe: MoeNames::Fused {
        router: tensor!("mlp.gate"),
        gate_up: Tensor { weight: "mlp.experts.gate_up_proj", bias: "" },
        down: Tensor { weight: "mlp.experts.down_proj", bias: "" },
        stored: Stored::OutIn,
        shared: Shared {
            gate_up: GateUp::Separate {
                gate: tensor!("mlp.shared_experts.linear_gate"),
                up: tensor!("mlp.shared_experts.up_proj"),
            },
            down: tensor!("mlp.shared_experts.down_proj"),
        },
    },
    ..Names::LLAMA
};

const HYPER: [HyperNames; 3] = [
    HyperNames::Sigmoid([
        "hc_pre.hc_attn_layer.hc_fn",
        "hc_pre.hc_attn_layer.hc_base",
        "hc_pre.hc_attn_layer.hc_scale",
    ]),
    HyperNames::Sigmoid([
        "hc_pre.hc_mlp_layer.hc_fn",
        "hc_pre.hc_mlp_layer.hc_base",
        "hc_pre.hc_mlp_layer.hc_scale",
    ]),
    HyperNames::Sigmoid([
        "hc_pre.hc_head.hc_head_fn",
        "hc_pre.hc_head.hc_head_base",
        "hc_pre.hc_head.hc_head_scale",
    ]),
];

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    metadata.get("learnable_sink_init"); // how training begins
    let heads = metadata.integer_if_any("num_attention_heads", 1..=1 << 16)?;
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: heads.map_or(KvHeads::AsQueries, KvHeads::Always),
        max_position_embeddings: 262_144,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        ..Defaults::LLAMA
    };
    let mla = MlaDefaults {
        qk_nope_head_dim: 192,
        v_head_dim: Some(256),
        rotation: Rotation::Fixed(RopeLayout::Neox),
        ..MlaDefaults::DEEPSEEK
    };
    let routing = Routing { scaling: ("routed_scaling_factor", 2.827), ..Routing::DEEPSEEK };
    let config = latent_mixture(metadata, &defaults, &mla, &routing, 1)?;
    let limit = metadata.number_or("swiglu_limit", -1e9..=1e9, 10.0)? as f32;
    let clamped = Activation::ClampedSwiglu { alpha: 1.0, limit, offset: 0.0 };
    let activation = (limit > 0.0).then_some(clamped);
    let hyper_connections = HyperConnections {
        hc_mult: metadata.integer_if_any("hc_mult", 1..=64)?.unwrap_or(4),
        weights: StreamWeights::Sigmoid {
            hc_magnitude: metadata.number_or("hc_magnitude", 0.0..=1e6, 2.0)? as f32,
            hc_eps: metadata.number_or("hc_eps", 0.0..=1.0, 1e-6)? as f32,
        },
        names: HYPER,
    };
    let indexing = IndexerDefaults {
        index_n_heads: 16,
        norm: Norm::LayerNorm { eps: config.norm.eps() },
        rotated: RotatedPart::Last,
        ..IndexerDefaults::DEEPSEEK
    };
    let mut config = Config {
        moe: config.moe.map(|moe| Moe { activation, ..moe }),
        mechanisms: Mechanisms { hyper: Some(hyper_connections), ..config.mechanisms },
        sinks: Sinks::PerHead,
        attention_gate: AttentionGate::Sigmoid(GateWidth::PerChannel),
        ..config
    };
    // A branch's result goes to the streams: nothing of what it read stays beside it.
    for layer in &mut config.layers {
        layer.residual_factors = [ResidualFactors { stream: 0.0, branch: 1.0 }; 2];
    }
    let usual = |layer: usize| layer > 0 && !(layer - 1).is_multiple_of(4);
    indexer_in_all_layers(metadata, config, &indexing, usual)
}

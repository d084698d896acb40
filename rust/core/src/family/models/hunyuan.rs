//! Hunyuan, dense and as a mixture of experts: a norm on every head of q and k after rotation, a base stretched by
//! `alpha`; and Hunyuan 3 (hy_v3): that norm before rotation, routed as DeepSeek V3.
//!
//! Tencent 2024 (Hunyuan-Large), 2025. Defaults of absent keys: transformers 5.23, `configuration_hunyuan_v1_dense.py`,
//! `configuration_hunyuan_v1_moe.py`, `configuration_hy_v3.py`; that `dynamic` with an alpha has one fixed base is in
//! `modeling_hunyuan_v1_dense.py`.

use serde_json::Value;

use crate::checkpoint::json::describe;
use crate::config::{
    Bias, Config, Moe, MoeNames, Names, QkNorm, QkNormPlace, RopeScaling, SharedExpert, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{
    Routing, experts_per_token, ignore_multi_token_prediction, moe_in_all_layers, routed_moe, sparse_layers,
};
use crate::family::keys::rope::rope_object;
use ropechat_platform::error::Result;

pub(crate) static HUNYUAN_V1_DENSE: Family =
    Family { model_types: &["hunyuan_v1_dense"], aliases: &[], config: dense };

pub(crate) static HUNYUAN_V1_MOE: Family = Family {
    model_types: &["hunyuan_v1_moe"],
    aliases: &[("moe_topk", "num_experts_per_tok")],
    config: mixture,
};

pub(crate) static HY_V3: Family = Family { model_types: &["hy_v3"], aliases: &[], config: third };

const NAMES: Names = Names {
    q_norm: tensor!("self_attn.query_layernorm"),
    k_norm: tensor!("self_attn.key_layernorm"),
    moe: MoeNames::Each {
        router: tensor!("mlp.gate.wg"),
        experts: "mlp.experts",
        parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        shared: "mlp.shared_mlp",
        shared_parts: MoeNames::PARTS,
    },
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    head_dim: HeadDim::FreeQuotient,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    mlp_bias: BiasKey::Absent(Bias::None),
    rope: Some(RopeDefaults {
        // The published files also have yarn's keys, which nothing reads with `dynamic`.
        own_keys: &["alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"],
        ..RopeDefaults::WHOLE
    }),
    ..Defaults::LLAMA
};

fn dense(metadata: &Metadata<'_>) -> Result<Config> {
    let mut config = base(metadata, &DEFAULTS)?;
    let alpha = match rope_object(metadata)? {
        Some(parameters) => parameters.number_if_any("alpha", 1e-6..=1e12)?,
        None => None,
    };
    for rope in &mut config.ropes {
        if let (RopeScaling::Dynamic { .. }, Some(alpha)) = (&rope.scaling, alpha) {
            let dim = rope.rotary_dim as f64;
            rope.theta *= alpha.powf(dim / (dim - 2.0));
            rope.scaling = RopeScaling::None;
        }
    }
    // Flags of the original code for what is computed here, and what nothing reads.
    for (key, computed) in [("use_qk_norm", true), ("use_cla", false), ("position_embedding_xdrope", false)] {
        if metadata.flag_or(key, computed)? != computed {
            return Err(metadata.unsupported(key, &format!("must be {computed} (got {})", !computed)));
        }
    }
    for key in ["attention_head_dim", "cla_share_factor", "eod_token_id", "norm_type", "org_vocab_size"] {
        metadata.get(key);
    }
    Ok(Config { qk_norm: QkNorm::PerHead(Bias::None), qk_norm_place: QkNormPlace::AfterRotation, ..config })
}

fn mixture(metadata: &Metadata<'_>) -> Result<Config> {
    let config = dense(metadata)?;
    let num_experts = same_in_all_layers(metadata, "num_experts")?.unwrap_or(1);
    let per_token = match same_in_all_layers(metadata, "moe_topk")? {
        Some(count) if count <= num_experts => count,
        Some(_) => experts_per_token(metadata, "moe_topk", num_experts, None)?,
        None => 1,
    };
    // The experts are as wide as `intermediate_size` says (`modeling_hunyuan_v1_moe.py`).
    for key in ["moe_intermediate_size", "num_shared_expert", "use_mixed_mlp_moe", "moe_layer_num_skipped"] {
        metadata.get(key);
    }
    let intermediate_size = config.intermediate_size;
    let shared = SharedExpert::Added { intermediate_size };
    let moe = Moe { shared, ..Moe::plain(num_experts, per_token, intermediate_size) };
    Ok(moe_in_all_layers(config, moe))
}

/// A number, or a list with the same number for every layer.
fn same_in_all_layers(metadata: &Metadata<'_>, key: &str) -> Result<Option<usize>> {
    match metadata.get(key) {
        Some(Value::Array(list)) => {
            let first = list.first().and_then(Value::as_u64).filter(|n| (1..=1 << 16).contains(n));
            match first.filter(|first| list.iter().all(|n| n.as_u64() == Some(*first))) {
                Some(count) => Ok(usize::try_from(count).ok()),
                None => {
                    let what =
                        format!("must be the same in all layers (got {})", describe(&list.clone().into()));
                    Err(metadata.unsupported(key, &what))
                }
            }
        }
        _ => metadata.integer_if_any(key, 1..=1 << 16),
    }
}

fn third(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names {
            moe: MoeNames::Each {
                router: tensor!("mlp.router.gate"),
                experts: "mlp.experts",
                parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
                shared: "mlp.shared_mlp",
                shared_parts: MoeNames::PARTS,
            },
            correction_bias: "mlp.expert_bias",
            ..Names::LLAMA
        },
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 131_072,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        rope: Some(RopeDefaults { theta: 11_158_840.0, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    let routing = Routing {
        experts: "num_experts",
        groups: None,
        scaling: ("router_scaling_factor", 2.826),
        shared: Some(("num_shared_experts", 1)),
        ..Routing::DEEPSEEK
    };
    let moe = routed_moe(metadata, &routing)?;
    ignore_multi_token_prediction(metadata);
    // Sums are in f32 here.
    metadata.get("enable_moe_fp32_combine");
    let config = Config { moe: Some(moe), qk_norm: QkNorm::PerHead(Bias::None), ..config };
    sparse_layers(metadata, config, 1)
}

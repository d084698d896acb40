//! Jamba: Mamba, with attention without positions in some layers; a mixture of experts in every second layer.
//!
//! AI21 2024 (Jamba, <https://arxiv.org/abs/2403.19887>); Gu and Dao 2023 (Mamba). Defaults of absent keys: transformers
//! 5.23, `configuration_jamba.py`.

use super::bamba;
use crate::config::{
    Bias, Config, LayerMlp, Mixer, Moe, MoeNames, Names, Normalization, Recurrent, RecurrentNames, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::experts_per_token;
use crate::mechanisms::selective_scan::config::SelectiveScan;
use ropechat_platform::error::Result;

pub(crate) static JAMBA: Family =
    Family { model_types: &["jamba"], aliases: &[("num_experts", "num_local_experts")], config };

const NAMES: Names = Names {
    moe: MoeNames::Each {
        router: tensor!("feed_forward.router"),
        experts: "feed_forward.experts",
        parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        shared: "",
        shared_parts: MoeNames::PARTS,
    },
    recurrent: RecurrentNames {
        inner: &[tensor!("mamba.x_proj"), tensor!("mamba.dt_proj")],
        inner_norms: &[
            tensor!("mamba.dt_layernorm"),
            tensor!("mamba.b_layernorm"),
            tensor!("mamba.c_layernorm"),
        ],
        ..bamba::MAMBA
    },
    ..bamba::NAMES
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        vocab_size: Some(65_536),
        num_attention_heads: Some(32),
        num_hidden_layers: Some(32),
        intermediate_size: Some(14_336),
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::FreeQuotient,
        max_position_embeddings: 262_144,
        attention_bias: BiasKey::Absent(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: None,
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    let [attention, experts] = [
        ("attn_layer_period", "attn_layer_offset", [8, 4]),
        ("expert_layer_period", "expert_layer_offset", [2, 1]),
    ]
    .map(|(period, offset, defaults)| every(metadata, period, offset, defaults));
    let ([attention_period, attention_offset], [expert_period, expert_offset]) = (attention?, experts?);
    let num_experts = metadata.integer_if_any("num_experts", 1..=1 << 16)?.unwrap_or(16);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(2));
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let has_attention = index % attention_period == attention_offset;
        layer.mixer = if has_attention { Mixer::Attention } else { Mixer::Recurrent };
        if num_experts > 1 && index % expert_period == expert_offset {
            layer.mlp = LayerMlp::Moe;
        }
    }
    if num_experts > 1 {
        let plain = Moe::plain(num_experts, per_token?, config.intermediate_size);
        config.moe = Some(Moe { normalization: Normalization::None, ..plain });
    }
    // How it is computed, and the last rows only in generation.
    for key in [
        "use_mamba_kernels",
        "use_mambapy",
        "use_associative_scan",
        "num_logits_to_keep",
        "calc_logits_for_entire_prompt",
    ] {
        metadata.get(key);
    }
    if !metadata.flag_or("mamba_inner_layernorms", true)? {
        return Err(metadata.unsupported("mamba_inner_layernorms", "must be true (got false)"));
    }
    Ok(Config { recurrent: Some(Recurrent::SelectiveScan(scan(metadata, &config)?)), ..config })
}

fn scan(metadata: &Metadata<'_>, config: &Config) -> Result<SelectiveScan> {
    let size = |key: &str, most: u64, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=most)?.unwrap_or(default))
    };
    let bias = |key: &str, default: bool| -> Result<Bias> {
        Ok(if metadata.flag_or(key, default)? { Bias::Added } else { Bias::None })
    };
    let time_step_rank = match metadata.get("mamba_dt_rank").and_then(serde_json::Value::as_str) {
        Some("auto") => None,
        _ => metadata.integer_if_any("mamba_dt_rank", 1..=1 << 16)?,
    };
    Ok(SelectiveScan {
        width: size("mamba_expand", 256, 2)? * config.hidden_size,
        state_size: size("mamba_d_state", 1 << 13, 16)?,
        time_step_rank: time_step_rank.unwrap_or(config.hidden_size.div_ceil(16)),
        conv_kernel_size: size("mamba_d_conv", 256, 4)?,
        conv_bias: bias("mamba_conv_bias", true)?,
        conv_activation: config.activation,
        bias: bias("mamba_proj_bias", false)?,
    })
}

/// Which layers: one of every so many, and which one; the second number must be smaller.
fn every(metadata: &Metadata<'_>, period: &str, offset: &str, defaults: [usize; 2]) -> Result<[usize; 2]> {
    let stated = |key: &str, least| metadata.integer_if_any(key, least..=1 << 16);
    let (every, first) =
        (stated(period, 1)?.unwrap_or(defaults[0]), stated(offset, 0)?.unwrap_or(defaults[1]));
    if first >= every {
        return Err(metadata.bad(offset, &format!("must be smaller than {period}, {every} (got {first})")));
    }
    Ok([every, first])
}

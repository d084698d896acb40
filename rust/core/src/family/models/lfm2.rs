//! LFM2 and LFM3: gated short convolutions, with attention in a few layers; dense, and as a mixture of experts.
//!
//! Liquid AI 2025 and 2026. Defaults of absent keys: transformers 5.23, `configuration_lfm2.py` and `configuration_lfm2_moe.py`.
//! Published files say `full_attn_idxs`, `block_ff_dim`, `tie_embedding` and `theta`, which came before the present keys.

use crate::config::{
    AttentionGate, Bias, Config, GateUp, GateWidth, InProj, LayerMlp, LmHead, Mask, Mixer, Moe, MoeNames,
    Names, NormPlacement, Normalization, QkNorm, Qkv, Recurrent, RecurrentNames, RopeLayout, Scoring, tensor,
};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{mixers, with_mixers};
use crate::family::keys::moe::experts_per_token;
use crate::family::keys::rope::{Partial, RopeFacts, ropes_by_kind};
use crate::family::keys::windows::{layer_numbers, window, with_ropes};
use crate::mechanisms::short_conv::config::ShortConv;
use ropechat_platform::error::Result;

pub(crate) static LFM2: Family = Family {
    model_types: &["lfm2"],
    aliases: &[
        ("intermediate_size", "block_ff_dim"),
        ("tie_word_embeddings", "tie_embedding"),
        ("rope_theta", "theta"),
    ],
    config: dense,
};

pub(crate) static LFM2_MOE: Family = Family {
    model_types: &["lfm2_moe"],
    aliases: &[("tie_word_embeddings", "tie_embedding"), ("rope_theta", "theta")],
    config: mixture,
};

pub(crate) static LFM3: Family = Family { model_types: &["lfm3"], aliases: &[], config: third };

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    vocab_size: Some(65_536),
    num_attention_heads: Some(32),
    intermediate_size: Some(12_288),
    num_key_value_heads: KvHeads::Usually(8),
    head_dim: HeadDim::Quotient,
    max_position_embeddings: 128_000,
    norm: NormKey::Rms("norm_eps", 1e-5),
    lm_head: LmHead::Tied,
    attention_bias: BiasKey::Absent(Bias::None),
    attention_out_bias: BiasKey::Absent(Bias::None),
    mlp_bias: BiasKey::Absent(Bias::None),
    rope: Some(RopeDefaults { theta: 1e6, ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

const NAMES: Names = Names {
    norm: tensor!("embedding_norm"),
    attention_norm: tensor!("operator_norm"),
    mlp_norm: tensor!("ffn_norm"),
    qkv: Qkv::Separate([
        tensor!("self_attn.q_proj"),
        tensor!("self_attn.k_proj"),
        tensor!("self_attn.v_proj"),
    ]),
    q_norm: tensor!("self_attn.q_layernorm"),
    k_norm: tensor!("self_attn.k_layernorm"),
    o_proj: tensor!("self_attn.out_proj"),
    gate_up_proj: GateUp::Separate { gate: tensor!("feed_forward.w1"), up: tensor!("feed_forward.w3") },
    down_proj: tensor!("feed_forward.w2"),
    moe: MoeNames::Each {
        router: tensor!("feed_forward.gate"),
        experts: "feed_forward.experts",
        parts: ["w1.weight", "w3.weight", "w2.weight"],
        shared: "",
        shared_parts: MoeNames::PARTS,
    },
    recurrent: RecurrentNames {
        in_proj: InProj::One(tensor!("conv.in_proj")),
        conv: &[tensor!("conv.conv")],
        out_proj: tensor!("conv.out_proj"),
        ..Names::LLAMA.recurrent
    },
    ..Names::LLAMA
};

/// Attention or a short convolution per layer, both with the keys that all LFM2 models have.
fn common(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    let kernel_size = metadata.integer_if_any("conv_L_cache", 1..=256)?.unwrap_or(3);
    let bias = if metadata.flag_or("conv_bias", false)? { Bias::Added } else { Bias::None };
    let convolution = ShortConv { width: config.hidden_size, kernel_size, bias };
    let recurrent = Some(Recurrent::ShortConv(convolution));
    Ok(Config { recurrent, qk_norm: QkNorm::PerHead(Bias::None), ..config })
}

fn dense(metadata: &Metadata<'_>) -> Result<Config> {
    let config = common(metadata, base(metadata, &DEFAULTS)?)?;
    let layers = config.layers.len();
    let attention =
        metadata.get("full_attn_idxs").map(|_| layer_numbers(metadata, "full_attn_idxs")).transpose()?;
    let types = mixers(metadata, layers, &["conv"], &["full_attention"])?;
    let types = types.unwrap_or_else(|| {
        let has_attention = |layer| attention.as_ref().is_none_or(|numbers| numbers.contains(&layer));
        (0..layers)
            .map(|layer| if has_attention(layer) { Mixer::Attention } else { Mixer::Recurrent })
            .collect()
    });
    let intermediate_size = adjusted_width(metadata, config.intermediate_size)?;
    Ok(Config { intermediate_size, ..with_mixers(config, &types) })
}

/// `block_auto_adjust_ff_dim`: two thirds of the stated width, times a factor, up to a multiple.
fn adjusted_width(metadata: &Metadata<'_>, width: usize) -> Result<usize> {
    let multiple = metadata.integer_if_any("block_multiple_of", 1..=1 << 20)?.unwrap_or(256);
    let factor = match metadata.has("block_ffn_dim_multiplier") {
        true => metadata.number_if_any("block_ffn_dim_multiplier", 1e-3..=1e3)?,
        false => Some(1.0),
    };
    if !metadata.flag_or("block_auto_adjust_ff_dim", true)? {
        return Ok(width);
    }
    let thirds = 2 * width / 3;
    let width = factor.map_or(thirds, |factor| (factor * thirds as f64) as usize);
    Ok(width.next_multiple_of(multiple))
}

/// Sigmoid routing with a bias for the choice, in the layers behind the dense ones.
fn mixture(metadata: &Metadata<'_>) -> Result<Config> {
    let names = Names { correction_bias: "feed_forward.expert_bias", ..NAMES };
    let defaults = Defaults { names, intermediate_size: Some(7168), ..DEFAULTS };
    let config = common(metadata, base(metadata, &defaults)?)?;
    let layers = config.layers.len();
    let attention = vec![Mixer::Attention; layers];
    let types = mixers(metadata, layers, &["conv"], &["full_attention"])?.unwrap_or(attention);
    let size = |key: &str, most: u64, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=most)?.unwrap_or(default))
    };
    let num_experts = size("num_experts", 1 << 16, 32)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(4))?;
    let moe = Moe {
        scoring: Scoring::Sigmoid,
        correction_bias: if metadata.flag_or("use_expert_bias", true)? { Bias::Added } else { Bias::None },
        normalization: match metadata.flag_or("norm_topk_prob", true)? {
            true => Normalization::Sum { plus: 1e-6 },
            false => Normalization::None,
        },
        scaling: metadata.number_or("routed_scaling_factor", 1e-6..=1e6, 1.0)? as f32,
        ..Moe::plain(num_experts, per_token, size("moe_intermediate_size", 1 << 24, 1792)?)
    };
    let dense = metadata.integer_if_any("num_dense_layers", 0..=1 << 16)?.unwrap_or(2);
    let mut config = Config { moe: Some(moe), ..with_mixers(config, &types) };
    config.layers.iter_mut().skip(dense).for_each(|layer| layer.mlp = LayerMlp::Moe);
    Ok(config)
}

/// LFM3: windows, a rotation per kind of layer, norms before and after, and a gate per head.
fn third(metadata: &Metadata<'_>) -> Result<Config> {
    let names = Names {
        attention_out_norm: tensor!("post_operator_norm"),
        mlp_out_norm: tensor!("post_ffn_norm"),
        q_norm: tensor!("self_attn.q_norm"),
        k_norm: tensor!("self_attn.k_norm"),
        o_proj: tensor!("self_attn.o_proj"),
        ..NAMES
    };
    let bias = BiasKey::Key("attention_bias", false);
    let defaults = Defaults {
        names,
        head_dim: HeadDim::FreeQuotient,
        attention_bias: bias,
        attention_out_bias: bias,
        rope: None,
        windows: WindowKeys::OfFamily,
        ..DEFAULTS
    };
    let config = common(metadata, base(metadata, &defaults)?)?;
    let attention = ["full_attention", "sliding_attention"];
    let layers = config.layers.len();
    let types = mixers(metadata, layers, &["conv"], &attention)?;
    let types = types.unwrap_or_else(|| vec![Mixer::Attention; layers]);
    let mut config = with_mixers(config, &types);
    let window = window(metadata, None)?;
    let names = metadata.texts_if_any("layer_types")?.unwrap_or_default();
    for (layer, _) in config.layers.iter_mut().zip(names).filter(|(_, name)| *name == "sliding_attention") {
        let Some(window) = window else {
            return Err(metadata.bad("sliding_window", "it is missing; a number of positions is needed"));
        };
        layer.mask = Mask::Sliding(window);
    }
    let facts = RopeFacts {
        theta: 1e6,
        head_dim: config.head_dim,
        partial: Partial::Whole,
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let thetas = ["rope_theta", "rope_local_base_freq"];
    let ropes = ropes_by_kind(metadata, attention, thetas, [facts, facts])?;
    let sandwich = metadata.flag_or("use_sandwich_norm", true)?;
    let gated = metadata.flag_or("use_attention_gate", true)?;
    Ok(Config {
        norm_placement: if sandwich { NormPlacement::Around } else { NormPlacement::Before },
        attention_gate: match gated {
            true => AttentionGate::Sigmoid(GateWidth::PerHead),
            false => AttentionGate::None,
        },
        ..with_ropes(config, ropes)
    })
}

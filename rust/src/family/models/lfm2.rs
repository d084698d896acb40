//! LFM2: gated short convolutions, with attention in a few layers; dense, and as a mixture of experts.
//!
//! Liquid AI 2025. Defaults of absent keys: transformers 5.23, `configuration_lfm2.py` and `configuration_lfm2_moe.py`.
//! Published files say `full_attn_idxs`, `block_ff_dim`, `tie_embedding` and `theta`, which came before the present keys.

use crate::config::{
    Bias, Config, GateUp, InProj, LmHead, Mixer, MoeNames, Names, QkNorm, Qkv, RecurrentNames, Recurrent, tensor,
};
use crate::error::Result;
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{mixers, with_mixers};
use crate::family::keys::windows::layer_numbers;

pub(crate) static LFM2: Family = Family {
    model_types: &["lfm2"],
    aliases: &[
        ("intermediate_size", "block_ff_dim"),
        ("tie_word_embeddings", "tie_embedding"),
        ("rope_theta", "theta"),
    ],
    config: dense,
};

pub(super) const DEFAULTS: Defaults = Defaults {
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
pub(super) fn common(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    let kernel_size = metadata.integer_if_any("conv_L_cache", 1..=256)?.unwrap_or(3);
    let bias = if metadata.flag_or("conv_bias", false)? { Bias::Added } else { Bias::None };
    let recurrent = Some(Recurrent::ShortConv { kernel_size, bias });
    Ok(Config { recurrent, qk_norm: QkNorm::PerHead(Bias::None), ..config })
}

fn dense(metadata: &Metadata<'_>) -> Result<Config> {
    let config = common(metadata, base(metadata, &DEFAULTS)?)?;
    let layers = config.layers.len();
    let attention = metadata.get("full_attn_idxs").map(|_| layer_numbers(metadata, "full_attn_idxs")).transpose()?;
    let types = mixers(metadata, layers, &["conv"], &["full_attention"])?;
    let types = types.unwrap_or_else(|| {
        let has_attention = |layer| attention.as_ref().is_none_or(|numbers| numbers.contains(&layer));
        (0..layers).map(|layer| if has_attention(layer) { Mixer::Attention } else { Mixer::Recurrent }).collect()
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

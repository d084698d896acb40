//! MiniMax Text: lightning attention, with softmax attention in some layers; every branch is added to its own normed input.
//!
//! MiniMax 2025 (<https://arxiv.org/abs/2501.08313>); Qin et al. 2024 (Lightning Attention-2). Defaults of absent keys:
//! transformers 5.23, `configuration_minimax.py`; the norm of lightning attention has an epsilon of 1e-6 whatever the file
//! says. Files that transformers writes store the decays, rounded to their type, and are computed with these.
//! The first files say `attn_type_list` and `layernorm_..._alpha`.

use super::mixtral;
use crate::config::{Bias, Config, Mask, Mixer, Moe, NormPlacement, Recurrent, ResidualFactors};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{mixers, with_mixers};
use crate::family::keys::moe::{experts_per_token, moe_in_all_layers};
use crate::family::keys::rope::Partial;
use crate::family::keys::windows::{layer_numbers, window};
use crate::mechanisms::lightning::config::Lightning;
use ropechat_platform::error::Result;

pub(crate) static MINIMAX: Family = Family {
    model_types: &["minimax", "minimax_text_01"],
    aliases: &[
        ("full_attn_alpha_factor", "layernorm_full_attention_alpha"),
        ("full_attn_beta_factor", "layernorm_full_attention_beta"),
        ("linear_attn_alpha_factor", "layernorm_linear_attention_alpha"),
        ("linear_attn_beta_factor", "layernorm_linear_attention_beta"),
        ("mlp_alpha_factor", "layernorm_mlp_alpha"),
        ("mlp_beta_factor", "layernorm_mlp_beta"),
        ("num_local_experts", "num_experts"),
    ],
    config,
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let rotary_dim = metadata.integer_if_any("rotary_dim", 2..=1 << 13)?;
    let defaults = Defaults {
        names: mixtral::NAMES,
        vocab_size: Some(32_000),
        num_attention_heads: Some(32),
        num_hidden_layers: Some(32),
        intermediate_size: Some(14_336),
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::FreeQuotient,
        max_position_embeddings: 4096 * 32,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        attention_bias: BiasKey::Absent(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults {
            theta: 1e6,
            partial: rotary_dim.map_or(Partial::Whole, Partial::Dimensions),
            ..RopeDefaults::WHOLE
        }),
        windows: WindowKeys::OfFamily,
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    let (layers, heads) = (config.layers.len(), config.num_attention_heads);
    let types = mixers(metadata, layers, &["linear_attention"], &["full_attention"])?;
    let types = match (types, metadata.has("attn_type_list")) {
        (Some(types), _) => types,
        (None, true) => by_numbers(metadata, layers)?,
        (None, false) => {
            let mixer =
                |layer: usize| if layer.is_multiple_of(2) { Mixer::Attention } else { Mixer::Recurrent };
            (0..layers).map(mixer).collect()
        }
    };
    let factors = |branch: &str| -> Result<ResidualFactors> {
        let factor = |what: &str| metadata.number_or(&format!("{branch}_{what}_factor"), 1e-6..=1e6, 1.0);
        Ok(ResidualFactors { stream: factor("alpha")? as f32, branch: factor("beta")? as f32 })
    };
    let [full, linear, mlp] = [factors("full_attn")?, factors("linear_attn")?, factors("mlp")?];
    let num_experts = metadata.integer_if_any("num_local_experts", 1..=1 << 16)?.unwrap_or(8);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(2))?;
    let moe = Moe::plain(num_experts, per_token, config.intermediate_size);
    let mut config = with_mixers(moe_in_all_layers(config, moe), &types);
    let window = window(metadata, None)?;
    for layer in &mut config.layers {
        let mixer = if layer.mixer.has_attention() { full } else { linear };
        (layer.residual_factors, layer.mask) = ([mixer, mlp], window.map_or(Mask::Causal, Mask::Sliding));
    }
    read_old_keys(metadata)?;
    metadata.get("block_size"); // how it is computed
    let lightning = Lightning {
        num_heads: heads,
        head_dim: config.head_dim,
        activation: config.activation,
        stored_block: None,
    };
    Ok(Config {
        recurrent: Some(Recurrent::Lightning(lightning)),
        norm_placement: NormPlacement::InStream,
        ..config
    })
}

/// `attn_type_list`: 0 for lightning attention, 1 for softmax attention.
fn by_numbers(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<Mixer>> {
    let types = layer_numbers(metadata, "attn_type_list")?;
    if types.len() != layers || types.iter().any(|&kind| kind > 1) {
        let what = format!("must have a 0 or a 1 per layer, {layers} (got {} numbers)", types.len());
        return Err(metadata.bad("attn_type_list", &what));
    }
    let mixer = |&kind: &usize| if kind == 1 { Mixer::Attention } else { Mixer::Recurrent };
    Ok(types.iter().map(mixer).collect())
}

/// Keys of the first files that leave one value to be computed.
fn read_old_keys(metadata: &Metadata<'_>) -> Result<()> {
    if !metadata.flag_or("postnorm", true)? {
        return Err(metadata.unsupported("postnorm", "must be true (got false)"));
    }
    if let Some(width) = metadata.integer_if_any("shared_intermediate_size", 0..=1 << 24)?.filter(|&n| n > 0)
    {
        let what = format!("must be 0, since a shared expert is not computed (got {width})");
        return Err(metadata.unsupported("shared_intermediate_size", &what));
    }
    metadata.get("shared_moe_mode");
    Ok(())
}

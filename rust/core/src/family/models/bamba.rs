//! Bamba: Mamba-2, with Llama's attention in some layers.
//!
//! IBM, Princeton, CMU and UIUC 2024; Dao and Gu 2024 (Mamba-2). Defaults of absent keys: transformers 5.23,
//! `configuration_bamba.py`.

use crate::config::{Config, GateUp, InProj, Mixer, Names, Recurrent, RecurrentNames, tensor};
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{mamba2, mixers, with_mixers};
use crate::family::keys::rope::Partial;
use crate::family::keys::windows::layer_numbers;
use ropechat_platform::error::Result;

pub(crate) static BAMBA: Family = Family { model_types: &["bamba"], aliases: &[], config };

/// The names of a Mamba-2 mixer.
pub(super) const MAMBA: RecurrentNames = RecurrentNames {
    in_proj: InProj::One(tensor!("mamba.in_proj")),
    conv: &[tensor!("mamba.conv1d")],
    conv_split: None,
    a_log: "mamba.A_log",
    dt_bias: "mamba.dt_bias",
    d: "mamba.D",
    norm: tensor!("mamba.norm"),
    out_proj: tensor!("mamba.out_proj"),
    ..Names::LLAMA.recurrent
};

pub(super) const NAMES: Names = Names {
    norm: tensor!("final_layernorm"),
    mlp_norm: tensor!("pre_ff_layernorm"),
    gate_up_proj: GateUp::Separate {
        gate: tensor!("feed_forward.gate_proj"),
        up: tensor!("feed_forward.up_proj"),
    },
    down_proj: tensor!("feed_forward.down_proj"),
    recurrent: MAMBA,
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    vocab_size: Some(128_000),
    num_attention_heads: Some(32),
    intermediate_size: Some(14_336),
    num_key_value_heads: KvHeads::Usually(8),
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 262_144,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    rope: Some(RopeDefaults { partial: Partial::Usually(0.5), ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &DEFAULTS)?;
    let layers = config.layers.len();
    let attention = layer_numbers(metadata, "attn_layer_indices")?;
    let types = mixers(metadata, layers, &["linear_attention", "mamba"], &["full_attention", "attention"])?;
    let types = types.unwrap_or_else(|| {
        let mixer = |layer| if attention.contains(&layer) { Mixer::Attention } else { Mixer::Recurrent };
        (0..layers).map(mixer).collect()
    });
    metadata.get("z_loss_coefficient"); // training
    let expand = metadata.integer_if_any("mamba_expand", 1..=256)?.unwrap_or(2);
    let linear = mamba2(metadata, expand * config.hidden_size, config.norm.eps())?;
    Ok(Config { recurrent: Some(Recurrent::Linear(linear)), ..with_mixers(config, &types) })
}

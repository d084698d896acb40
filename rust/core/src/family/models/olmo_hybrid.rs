//! OLMo Hybrid: Gated DeltaNet with separate projections, and OLMo 3's attention in some layers, with or without
//! rotation.
//!
//! Ai2 2026. Defaults of absent keys: transformers 5.23, `configuration_olmo_hybrid.py`; the norm of DeltaNet's output has an
//! epsilon of 1e-5 regardless of the file.

use crate::config::{
    Bias, Config, GatedOutput, InProj, LayerRope, LinearAttention, LinearRule, Mixer, Names, NormPlacement,
    QkNorm, Recurrent, RecurrentNames, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{delta_net, mixers, with_mixers};
use ropechat_platform::error::Result;

pub(crate) static OLMO_HYBRID: Family = Family { model_types: &["olmo_hybrid"], aliases: &[], config };

const NAMES: Names = Names {
    attention_norm: tensor!("attention_layer_norm"),
    attention_out_norm: tensor!("post_attention_layernorm"),
    mlp_norm: tensor!("feedforward_layer_norm"),
    recurrent: RecurrentNames {
        in_proj: InProj::Each([
            tensor!("linear_attn.q_proj"),
            tensor!("linear_attn.k_proj"),
            tensor!("linear_attn.v_proj"),
            tensor!("linear_attn.g_proj"),
            tensor!("linear_attn.b_proj"),
            tensor!("linear_attn.a_proj"),
        ]),
        conv: &[
            tensor!("linear_attn.q_conv1d"),
            tensor!("linear_attn.k_conv1d"),
            tensor!("linear_attn.v_conv1d"),
        ],
        norm: tensor!("linear_attn.o_norm"),
        out_proj: tensor!("linear_attn.o_proj"),
        ..Names::LLAMA.recurrent
    },
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    vocab_size: Some(100_352),
    num_attention_heads: Some(30),
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 65_536,
    mlp_bias: BiasKey::Absent(Bias::None),
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let mut config = base(metadata, &DEFAULTS)?;
    let (layers, heads) = (config.layers.len(), config.num_attention_heads);
    let types = mixers(metadata, layers, &["linear_attention"], &["full_attention"])?.unwrap_or_else(|| {
        let last = layers < 4;
        let has_attention = |layer: usize| layer % 4 == 3 || (last && layer + 1 == layers);
        let mixer = |layer| if has_attention(layer) { Mixer::Attention } else { Mixer::Recurrent };
        (0..layers).map(mixer).collect()
    });
    let key_heads = metadata.integer_if_any("linear_num_key_heads", 1..=1 << 16)?.unwrap_or(heads);
    let key_dim = (0.75 * config.hidden_size as f64 / key_heads as f64) as usize;
    let key_dim = metadata.integer_if_any("linear_key_head_dim", 1..=1 << 13)?.unwrap_or(key_dim);
    let beta = if metadata.flag_or("linear_allow_neg_eigval", true)? { 2.0 } else { 1.0 };
    let linear = delta_net(metadata, [Some(key_heads), Some(heads), Some(key_dim), Some(2 * key_dim)])?;
    let output = GatedOutput::NormThenGate { eps: 1e-5, group: linear.value_dim, shared_weight: true };
    let linear = LinearAttention { rule: LinearRule::GatedDelta { beta }, output, ..linear };
    for key in
        ["linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"]
    {
        metadata.get(key); // how training begins
    }
    // `rope_parameters: null` takes the rotation away.
    if metadata.has("rope_parameters") && metadata.get("rope_parameters").is_none() {
        config.ropes.clear();
        config.layers.iter_mut().for_each(|layer| layer.rope = LayerRope::None);
    }
    Ok(Config {
        recurrent: Some(Recurrent::Linear(linear)),
        qk_norm: QkNorm::FullWidth,
        norm_placement: NormPlacement::AfterAttention,
        ..with_mixers(config, &types)
    })
}

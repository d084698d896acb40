//! Phi 1, 1.5 and 2: attention and MLP in parallel behind one LayerNorm, biases everywhere, half of a head rotated.
//!
//! Gunasekar et al. 2023, Li et al. 2023 (Phi-1.5). Defaults of absent keys: transformers 5.23, `configuration_phi.py`.

use crate::config::{Activation, Bias, Config, MlpShape, Names, QkNorm, Qkv, Residual, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static PHI: Family = Family { model_types: &["phi"], aliases: &[], config };

const NAMES: Names = Names {
    norm: tensor!("final_layernorm"),
    mlp_norm: tensor!("input_layernorm"),
    qkv: Qkv::Separate([
        tensor!("self_attn.q_proj"),
        tensor!("self_attn.k_proj"),
        tensor!("self_attn.v_proj"),
    ]),
    q_norm: tensor!("self_attn.q_layernorm"),
    k_norm: tensor!("self_attn.k_layernorm"),
    o_proj: tensor!("self_attn.dense"),
    gate_up_proj: Names::plain_up(tensor!("mlp.fc1")),
    down_proj: tensor!("mlp.fc2"),
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    head_dim: HeadDim::FreeQuotient,
    norm: NormKey::Layer("layer_norm_eps", 1e-5),
    activation: Activation::GeluTanh,
    attention_bias: BiasKey::Fixed(Bias::Added),
    attention_out_bias: BiasKey::Absent(Bias::Added),
    mlp_bias: BiasKey::Absent(Bias::Added),
    rope: Some(RopeDefaults { partial: Partial::Cut(0.5), ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let normed = metadata.flag_or("qk_layernorm", false)?;
    Ok(Config {
        residual: Residual::Parallel,
        mlp: MlpShape::Plain,
        lm_head_bias: Bias::Added,
        qk_norm: if normed { QkNorm::PerHead(Bias::Added) } else { QkNorm::None },
        ..base(metadata, &DEFAULTS)?
    })
}

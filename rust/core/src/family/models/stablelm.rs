//! StableLM 2 and 3B: Llama with LayerNorm, a quarter of a head rotated, and (12B) parallel blocks and head norms.
//!
//! Bellagente et al. 2024 (Stable LM 2). Defaults of absent keys: transformers 5.23, `configuration_stablelm.py`.

use crate::config::{Bias, Config, Names, QkNorm, Residual, Tensor, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static STABLELM: Family = Family { model_types: &["stablelm"], aliases: &[], config };

const SEQUENTIAL: Names = Names {
    q_norm: Tensor { weight: "self_attn.q_layernorm.norms.{}.weight", bias: "" },
    k_norm: Tensor { weight: "self_attn.k_layernorm.norms.{}.weight", bias: "" },
    ..Names::LLAMA
};
const PARALLEL: Names = Names { mlp_norm: tensor!("input_layernorm"), ..SEQUENTIAL };

const DEFAULTS: Defaults = Defaults {
    names: SEQUENTIAL,
    num_key_value_heads: KvHeads::Usually(32),
    max_position_embeddings: 4096,
    norm: NormKey::Layer("layer_norm_eps", 1e-5),
    attention_bias: BiasKey::Key("use_qkv_bias", false),
    attention_out_bias: BiasKey::Absent(Bias::None),
    rope: Some(RopeDefaults { partial: Partial::Cut(0.25), ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let parallel = metadata.flag_or("use_parallel_residual", false)?;
    let normed = metadata.flag_or("qk_layernorm", false)?;
    let (names, residual) =
        if parallel { (PARALLEL, Residual::Parallel) } else { (SEQUENTIAL, Residual::Sequential) };
    let config = base(metadata, &Defaults { names, ..DEFAULTS })?;
    let qk_norm = if normed { QkNorm::PerHeadSplit } else { QkNorm::None };
    Ok(Config { residual, qk_norm, ..config })
}

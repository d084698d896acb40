//! GLM 4.5 to 4.7: half of a head rotated by halves, experts routed as in DeepSeek V3 (glm4_moe); and GLM 4.7 Flash, with
//! latent attention (glm4_moe_lite).
//!
//! GLM Team 2025 (GLM-4.5, <https://arxiv.org/abs/2508.06471>). Defaults of absent keys: transformers 5.23,
//! `configuration_glm4_moe.py`, `configuration_glm4_moe_lite.py`.

use super::deepseek::{NAMES, config as latent_mixture};
use crate::config::{Bias, Config, MtpNames, QkNorm};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::MlaDefaults;
use crate::family::keys::moe::{Routing, ignore_multi_token_prediction, routed_moe, sparse_layers};
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static GLM4_MOE: Family = Family { model_types: &["glm4_moe"], aliases: &[], config };

pub(crate) static GLM4_MOE_LITE: Family = Family {
    model_types: &["glm4_moe_lite"],
    aliases: &[],
    config: |metadata| {
        let mla = MlaDefaults {
            q_lora_rank: Some(768),
            qk_nope_head_dim: 192,
            v_head_dim: Some(256),
            ..MlaDefaults::DEEPSEEK
        };
        let routing =
            Routing { per_token: Some(4), scaling: ("routed_scaling_factor", 1.8), ..Routing::DEEPSEEK };
        let defaults = Defaults {
            names: NAMES,
            max_position_embeddings: 202_752,
            norm: NormKey::Rms("rms_norm_eps", 1e-5),
            ..Defaults::LLAMA
        };
        Ok(latent_mixture(metadata, &defaults, &mla, &routing, 1)?.with_mtp(MtpNames::IN_LAYER))
    },
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::FreeQuotient,
        max_position_embeddings: 131_072,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { partial: Partial::Usually(0.5), ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    let normed = metadata.flag_or("use_qk_norm", false)?;
    let qk_norm = if normed { QkNorm::PerHead(Bias::None) } else { QkNorm::None };
    ignore_multi_token_prediction(metadata);
    let moe = routed_moe(metadata, &Routing::DEEPSEEK)?;
    let config = sparse_layers(metadata, Config { moe: Some(moe), qk_norm, ..config }, 1)?;
    Ok(config.with_mtp(MtpNames::IN_LAYER))
}

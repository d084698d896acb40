//! Mistral 4: latent attention, queries that grow with their position, experts by a softmax with groups.
//!
//! Mistral AI 2026 (Mistral Small 4). Defaults of absent keys: transformers 5.23, `configuration_mistral4.py`.

use super::deepseek::config as latent_mixture;
use super::mistral::query_scaling;
use crate::config::{Bias, Config, GateUp, MoeNames, Names, Scoring, Shared, Stored, Tensor, tensor};
use crate::family::keys::base::{Defaults, Family, RopeDefaults};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::MlaDefaults;
use crate::family::keys::moe::Routing;
use ropechat_platform::error::Result;

pub(crate) static MISTRAL4: Family = Family { model_types: &["mistral4"], aliases: &[], config };

const NAMES: Names = Names {
    bases: &["model.", "language_model.model.", "model.language_model."],
    moe: MoeNames::Fused {
        router: tensor!("mlp.gate"),
        gate_up: Tensor { weight: "mlp.experts.gate_up_proj", bias: "" },
        down: Tensor { weight: "mlp.experts.down_proj", bias: "" },
        stored: Stored::OutIn,
        shared: Shared {
            gate_up: GateUp::Separate {
                gate: tensor!("mlp.shared_experts.gate_proj"),
                up: tensor!("mlp.shared_experts.up_proj"),
            },
            down: tensor!("mlp.shared_experts.down_proj"),
        },
    },
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        max_position_embeddings: 1_048_576,
        rope: Some(RopeDefaults {
            own_keys: &["llama_4_scaling_beta", "max_position_embeddings"],
            ..RopeDefaults::WHOLE
        }),
        ..Defaults::LLAMA
    };
    let mla = MlaDefaults {
        q_lora_rank: Some(1024),
        kv_lora_rank: 256,
        qk_nope_head_dim: 64,
        ..MlaDefaults::DEEPSEEK
    };
    let routing = Routing {
        per_token: Some(4),
        scoring: Scoring::Softmax,
        correction_bias: Bias::None,
        ..Routing::DEEPSEEK
    };
    let query_scaling = query_scaling(metadata)?;
    Ok(Config { query_scaling, ..latent_mixture(metadata, &defaults, &mla, &routing, 0)? })
}

//! Aria, text: Llama with experts in fused tensors, and shared ones as one MLP.
//!
//! Rhymes AI 2024 (Aria, <https://arxiv.org/abs/2410.05993>). Defaults of absent keys: transformers 5.23,
//! `configuration_aria.py`.

use crate::config::{Activation, Config, GateUp, Moe, MoeNames, Names, Shared, SharedExpert, Stored, tensor};
use crate::family::keys::base::{Defaults, Family, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, moe_in_all_layers};
use ropechat_platform::error::Result;

pub(crate) static ARIA_TEXT: Family = Family { model_types: &["aria_text"], aliases: &[], config };

const NAMES: Names = Names {
    bases: &["model.", "language_model.model.", "model.language_model."],
    moe: MoeNames::Fused {
        router: tensor!("mlp.router"),
        gate_up: tensor!("mlp.experts.fc1"),
        down: tensor!("mlp.experts.fc2"),
        stored: Stored::InOut,
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
    let config = base(metadata, &Defaults { names: NAMES, ..Defaults::LLAMA })?;
    let number = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(default))
    };
    let num_experts = number("moe_num_experts", 8)?;
    let per_token = experts_per_token(metadata, "moe_topk", num_experts, Some(2))?;
    for key in ["moe_z_loss_coeff", "moe_aux_loss_coeff"] {
        metadata.get(key);
    }
    let shared = match metadata.integer_if_any("moe_num_shared_experts", 0..=1 << 16)?.unwrap_or(2) {
        0 => SharedExpert::None,
        count => SharedExpert::Added { intermediate_size: config.intermediate_size * count },
    };
    // The routed experts have SiLU, regardless of `hidden_act`.
    let activation = Some(Activation::Silu);
    let moe = Moe { shared, activation, ..Moe::plain(num_experts, per_token, config.intermediate_size) };
    Ok(moe_in_all_layers(config, moe))
}

//! Mixtral: Mistral with a mixture of experts in every layer.
//!
//! Jiang et al. 2024 (Mixtral of Experts). Defaults of absent keys: transformers 5.23, `configuration_mixtral.py`: base
//! 1e6, no window, 8 experts of which 2.

use super::mistral::DEFAULTS;
use crate::config::{Config, Moe, MoeNames, Names, tensor};
use crate::family::keys::base::{Defaults, Family, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, moe_in_all_layers};
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static MIXTRAL: Family = Family { model_types: &["mixtral"], aliases: &[], config };

pub(crate) const NAMES: Names = Names {
    moe: MoeNames::Each {
        router: tensor!("block_sparse_moe.gate"),
        experts: "block_sparse_moe.experts",
        parts: ["w1.weight", "w3.weight", "w2.weight"],
        shared: "",
        shared_parts: MoeNames::PARTS,
    },
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        rope: Some(RopeDefaults { theta: 1e6, ..RopeDefaults::WHOLE }),
        ..DEFAULTS
    };
    let config = base(metadata, &defaults)?;
    let num_experts = metadata.integer_if_any("num_local_experts", 1..=1 << 16)?.unwrap_or(8);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(2))?;
    let moe = Moe::plain(num_experts, per_token, config.intermediate_size);
    let window = window(metadata, None)?;
    with_windows(metadata, moe_in_all_layers(config, moe), window, |_| true)
}

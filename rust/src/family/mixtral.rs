//! Mixtral: Mistral with a mixture of experts in every layer.
//!
//! Jiang et al. 2024 (Mixtral of Experts). Defaults of absent keys: transformers 5.23, `configuration_mixtral.py`: base
//! 1e6, no window, 8 experts of which 2.

use super::Family;
use super::base::{Defaults, NormKey, RopeDefaults, base};
use super::metadata::Metadata;
use super::mistral::DEFAULTS;
use super::mixture::{all_experts, chosen};
use super::windows::{window, with_windows};
use crate::config::{Bias, Config, ExpertGroups, ExpertNames, Experts, Names, Scoring, SharedExpert, tensor};
use crate::error::Result;

/// Facts of the family.
pub(super) static MIXTRAL: Family = Family { model_types: &["mixtral"], aliases: &[], config };

const NAMES: Names = Names {
    experts: ExpertNames::Each {
        router: tensor!("block_sparse_moe.gate"),
        experts: "block_sparse_moe.experts",
        parts: ["w1.weight", "w3.weight", "w2.weight"],
        shared: "",
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
    let experts = Experts {
        num_experts,
        num_experts_per_tok: chosen(metadata, "num_experts_per_tok", num_experts, Some(2))?,
        intermediate_size: config.intermediate_size,
        scoring: Scoring::SoftmaxOfChosen,
        groups: ExpertGroups::None,
        scaling: 1.0,
        bias: Bias::None,
        shared: SharedExpert::None,
    };
    let window = window(metadata, None)?;
    with_windows(metadata, all_experts(config, experts), window, |_| true)
}

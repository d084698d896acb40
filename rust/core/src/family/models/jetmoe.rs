//! JetMoE: mixtures of attention heads and of MLPs.
//!
//! Shen et al. 2024, <https://arxiv.org/abs/2404.07413>. Defaults of absent keys: transformers 5.23,
//! `configuration_jetmoe.py`; `num_attention_heads` follows from the experts per token, regardless of the file, and
//! only the norm after the last layer has the epsilon of the file.

use crate::config::{
    Attention, Bias, Config, GateUp, LmHead, Mechanisms, Moe, MoeNames, Names, Norm, Shared, Stored, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, ignore_multi_token_prediction, moe_in_all_layers};
use crate::mechanisms::head_experts::config::HeadExperts;
use ropechat_platform::error::Result;

pub(crate) static JETMOE: Family =
    Family { model_types: &["jetmoe"], aliases: &[("head_dim", "kv_channels")], config };

const MOE: MoeNames = MoeNames::Fused {
    router: tensor!("mlp.router.layer"),
    gate_up: tensor!("mlp.input_linear"),
    down: tensor!("mlp.output_linear"),
    stored: Stored::OutIn,
    shared: Shared { gate_up: GateUp::Stacked(tensor!("")), down: tensor!("") },
};

const KEY_VALUE_HEADS: usize = 16;

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let num_experts = metadata.integer_if_any("num_local_experts", 1..=1 << 16)?.unwrap_or(8);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(2))?;
    let stated = metadata.integer_if_any("num_key_value_heads", 1..=1 << 16)?;
    let num_attention_heads = stated.unwrap_or(KEY_VALUE_HEADS) * per_token;
    let defaults = Defaults {
        names: Names { moe: MOE, ..Names::LLAMA },
        vocab_size: Some(32_000),
        num_attention_heads: Some(num_attention_heads),
        num_hidden_layers: Some(12),
        intermediate_size: Some(5632),
        num_key_value_heads: KvHeads::Usually(KEY_VALUE_HEADS),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 4096,
        activation_key: "activation_function",
        lm_head: LmHead::Tied,
        attention_bias: BiasKey::Fixed(Bias::None),
        attention_out_bias: BiasKey::Fixed(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    ignore_multi_token_prediction(metadata);
    let moe =
        Moe { output_bias: Bias::Added, ..Moe::plain(num_experts, per_token, config.intermediate_size) };
    let experts = HeadExperts { num_experts, num_experts_per_tok: per_token };
    Ok(Config {
        num_attention_heads,
        attention: Attention::OfMechanism,
        mechanisms: Mechanisms { head_experts: Some(experts), ..Mechanisms::default() },
        final_norm: Some(config.norm),
        norm: Norm::RmsNorm { eps: 1e-6 },
        ..moe_in_all_layers(config, moe)
    })
}

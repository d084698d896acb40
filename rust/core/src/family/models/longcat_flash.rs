//! LongCat Flash: two halves of latent attention and an MLP per layer, a mixture that reads the first half and is added after
//! the second, experts that give back their input.
//!
//! Meituan 2025 (LongCat-Flash, <https://arxiv.org/abs/2509.01322>). Defaults of absent keys: transformers 5.23,
//! `configuration_longcat_flash.py`.

use crate::config::{
    Attention, Bias, Config, GateUp, KvB, LayerMlp, MlaNames, Moe, MoeNames, Names, Normalization,
    RopeLayout, tensor,
};
use crate::family::keys::base::{Defaults, Family, NormKey, RopeDefaults};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::{MlaDefaults, Rotation, latent};
use crate::family::keys::moe::{experts_per_token, ignore_multi_token_prediction};
use ropechat_platform::error::Result;

pub(crate) static LONGCAT_FLASH: Family = Family {
    model_types: &["longcat_flash"],
    aliases: &[
        ("num_hidden_layers", "num_layers"),
        ("intermediate_size", "ffn_hidden_size"),
        ("moe_intermediate_size", "expert_ffn_hidden_size"),
        ("num_experts_per_tok", "moe_topk"),
    ],
    config,
};

const NAMES: Names = Names {
    layers_per_number: 2,
    attention_norm: tensor!("input_layernorm.{part}"),
    mlp_norm: tensor!("post_attention_layernorm.{part}"),
    mla: MlaNames {
        q_proj: tensor!("self_attn.{part}.q_proj"),
        q_a_proj: tensor!("self_attn.{part}.q_a_proj"),
        q_a_layernorm: tensor!("self_attn.{part}.q_a_layernorm"),
        q_b_proj: tensor!("self_attn.{part}.q_b_proj"),
        kv_a_proj: tensor!("self_attn.{part}.kv_a_proj_with_mqa"),
        kv_a_layernorm: tensor!("self_attn.{part}.kv_a_layernorm"),
        kv_b_proj: KvB::Together(tensor!("self_attn.{part}.kv_b_proj")),
        ..Names::LLAMA.mla
    },
    o_proj: tensor!("self_attn.{part}.o_proj"),
    gate_up_proj: GateUp::Separate {
        gate: tensor!("mlps.{part}.gate_proj"),
        up: tensor!("mlps.{part}.up_proj"),
    },
    down_proj: tensor!("mlps.{part}.down_proj"),
    moe: MoeNames::Each {
        router: tensor!("mlp.router.classifier"),
        experts: "mlp.experts",
        parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        shared: "",
        shared_parts: MoeNames::PARTS,
    },
    correction_bias: "mlp.router.e_score_correction_bias",
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        max_position_embeddings: 131_072,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        rope: Some(RopeDefaults { theta: 1e7, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let mla = MlaDefaults { rotation: Rotation::Fixed(RopeLayout::Interleaved), ..MlaDefaults::DEEPSEEK };
    let mut config = latent(metadata, &defaults, &mla)?;
    metadata.get("head_dim");
    metadata.get("rope_interleave");
    if let Attention::Mla { q_lora_rank, kv_lora_rank, latent_factors, .. } = &mut config.attention {
        let factor = |rank: usize| (config.hidden_size as f64 / rank as f64).sqrt() as f32;
        *latent_factors = [q_lora_rank.map_or(1.0, factor), factor(*kv_lora_rank)];
    }
    let num_experts = metadata.integer("n_routed_experts", 1..=1 << 16)?;
    let zero_experts = metadata.integer_if_any("zero_expert_num", 0..=1 << 16)?.unwrap_or(256);
    if metadata.text_if_any("zero_expert_type")?.is_some_and(|kind| kind != "identity") {
        return Err(metadata.unsupported("zero_expert_type", "must be \"identity\""));
    }
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts + zero_experts, Some(12))?;
    let width = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
    ignore_multi_token_prediction(metadata);
    for key in ["mla_scale_q_lora", "mla_scale_kv_lora", "attention_method"] {
        metadata.get(key); // the original's words for what is computed here
    }
    if metadata.flag_or("router_bias", false)? {
        return Err(metadata.unsupported("router_bias", "must be false (got true)"));
    }
    let moe = Moe {
        correction_bias: Bias::Added,
        normalization: Normalization::None,
        scaling: metadata.number_or("routed_scaling_factor", 1e-6..=1e6, 6.0)? as f32,
        zero_experts,
        ..Moe::plain(num_experts, per_token, width)
    };
    let halves = config.layers.iter().flat_map(|&layer| {
        [LayerMlp::DenseAndMoeForNext, LayerMlp::Dense].map(|mlp| crate::config::LayerSpec { mlp, ..layer })
    });
    let layers = halves.collect();
    Ok(Config { layers, moe: Some(moe), ..config })
}

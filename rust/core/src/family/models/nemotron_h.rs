//! Nemotron-H and Nemotron Nano: every layer is one of Mamba-2, attention without positions, and an MLP.
//!
//! NVIDIA 2025. Defaults of absent keys: transformers 5.23, `configuration_nemotron_h.py`. Older files write the layers as
//! letters in `hybrid_override_pattern`.

use crate::checkpoint::json::describe;
use crate::config::{
    Activation, Bias, Config, GatedOutput, InProj, KeyHeads, LayerMlp, LinearAttention, LinearRule, Mixer,
    MlpShape, Moe, MoeNames, Names, Qkv, Recurrent, RecurrentNames, SharedExpert, tensor,
};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, activation, base, bias,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::check_groups;
use crate::family::keys::moe::{Routing, routed_moe};
use ropechat_platform::error::Result;

pub(crate) static NEMOTRON_H: Family = Family {
    model_types: &["nemotron_h"],
    aliases: &[
        ("layers_block_type", "layer_types"),
        ("head_dim", "attention_head_dim"),
        ("n_groups", "mamba_n_groups"),
        ("conv_kernel", "mamba_d_conv"),
        ("time_step_limit", "mamba_dt_limit"),
        ("use_conv_bias", "mamba_conv_bias"),
    ],
    config,
};

const NAMES: Names = Names {
    bases: &["backbone.", "model."],
    base: "backbone.",
    embed_tokens: "embeddings.weight",
    norm: tensor!("norm_f"),
    attention_norm: tensor!("norm"),
    mlp_norm: tensor!("norm"),
    qkv: Qkv::Separate([tensor!("mixer.q_proj"), tensor!("mixer.k_proj"), tensor!("mixer.v_proj")]),
    o_proj: tensor!("mixer.o_proj"),
    gate_up_proj: Names::plain_up(tensor!("mixer.up_proj")),
    down_proj: tensor!("mixer.down_proj"),
    correction_bias: "mixer.gate.e_score_correction_bias",
    moe: MoeNames::Each {
        router: tensor!("mixer.gate"),
        experts: "mixer.experts",
        parts: ["", "up_proj.weight", "down_proj.weight"],
        shared: "mixer.shared_experts",
        shared_parts: MoeNames::PARTS,
    },
    recurrent: RecurrentNames {
        in_proj: InProj::One(tensor!("mixer.in_proj")),
        conv: &[tensor!("mixer.conv1d")],
        conv_split: None,
        a_log: "mixer.A_log",
        dt_bias: "mixer.dt_bias",
        d: "mixer.D",
        norm: tensor!("mixer.norm"),
        out_proj: tensor!("mixer.out_proj"),
        ..Names::LLAMA.recurrent
    },
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let blocks = blocks(metadata)?;
    let defaults = Defaults {
        names: NAMES,
        vocab_size: Some(131_072),
        num_hidden_layers: Some(blocks.len()),
        num_attention_heads: Some(32),
        intermediate_size: Some(21_504),
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 4096,
        norm: NormKey::Rms("layer_norm_epsilon", 1e-5),
        activation_key: "mlp_hidden_act",
        activation: Activation::Relu2,
        // No attention has one, regardless of `attention_bias`.
        attention_bias: BiasKey::Absent(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        rope: None,
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    // The list of layers decides, regardless of `num_hidden_layers`.
    config.layers.resize(blocks.len(), config.layers[0]);
    for (layer, (mixer, mlp)) in config.layers.iter_mut().zip(blocks) {
        (layer.mixer, layer.mlp) = (mixer, mlp);
    }
    if config.layers.iter().any(|layer| layer.mlp == LayerMlp::Moe) {
        config.moe = Some(experts(metadata)?);
    }
    for key in KEYS_WITHOUT_EFFECT {
        metadata.get(key);
    }
    if config.moe.is_none() {
        EXPERT_KEYS.iter().for_each(|key| {
            metadata.get(key);
        });
    }
    let recurrent = Some(Recurrent::Linear(mamba(metadata, config.norm.eps())?));
    Ok(Config { recurrent, mlp: MlpShape::Plain, ..config })
}

/// How training begins, how kernels work, and layers for multi-token prediction, which are not computed.
const KEYS_WITHOUT_EFFECT: &[&str] = &[
    "attention_bias",
    "expand",
    "mamba_expand",
    "chunk_size",
    "mamba_chunk_size",
    "mamba_ssm_cache_dtype",
    "mamba_proj_bias",
    "moe_shared_expert_overlap",
    "mtp_layers_block_type",
    "mtp_hybrid_override_pattern",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "use_mamba_kernels",
];

/// Routing as in DeepSeek V3, experts without a gate, and a shared one with its own width.
fn experts(metadata: &Metadata<'_>) -> Result<Moe> {
    let latent_size = metadata.integer_if_any("moe_latent_size", 1..=1 << 20)?;
    let latent_bias = bias(metadata, BiasKey::Key("mlp_bias", false))?;
    let moe = routed_moe(metadata, &Routing { per_token: Some(2), shared: None, ..Routing::DEEPSEEK })?;
    metadata.get("n_shared_experts"); // one, of the width that is stated
    let width = metadata.integer_if_any("moe_shared_expert_intermediate_size", 1..=1 << 24)?;
    let shared = SharedExpert::Added { intermediate_size: width.unwrap_or(7688) };
    Ok(Moe { shared, latent_size, latent_bias, ..moe })
}

/// Sizes of experts, without effect where no layer has them.
const EXPERT_KEYS: &[&str] = &[
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "topk_group",
];

fn mamba(metadata: &Metadata<'_>, eps: f32) -> Result<LinearAttention> {
    let size = |key: &str, most: u64, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=most)?.unwrap_or(default))
    };
    let bias = |key: &str, default: bool| -> Result<Bias> {
        Ok(if metadata.flag_or(key, default)? { Bias::Added } else { Bias::None })
    };
    let (heads, value_dim) = (size("mamba_num_heads", 1 << 16, 128)?, size("mamba_head_dim", 1 << 13, 64)?);
    let groups = size("n_groups", 1 << 16, 8)?;
    let proj_bias = bias("use_bias", false)?;
    // Steps have no other limit, regardless of `time_step_limit` (`modeling_nemotron_h.py`).
    let least = metadata.number_or("time_step_min", 0.0..=1e3, 0.001)? as f32;
    let linear = LinearAttention {
        rule: LinearRule::Mamba2 { time_step_limit: [least, f32::INFINITY], multipliers: [1.0; 5] },
        num_key_heads: groups,
        num_value_heads: heads,
        key_heads: KeyHeads::Grouped,
        key_dim: size("ssm_state_size", 1 << 13, 128)?,
        value_dim,
        conv_kernel_size: size("conv_kernel", 256, 4)?,
        conv_bias: bias("use_conv_bias", true)?,
        conv_activation: activation(metadata, "mamba_hidden_act", Activation::Silu)?,
        in_bias: proj_bias,
        out_bias: proj_bias,
        output: GatedOutput::GateThenNorm { eps, group: heads * value_dim / groups },
        gate: Activation::Silu,
        gate_rank: None,
    };
    check_groups(metadata, "n_groups", linear)
}

/// What each layer is.
fn blocks(metadata: &Metadata<'_>) -> Result<Vec<(Mixer, LayerMlp)>> {
    const KEY: &str = "layers_block_type";
    let pattern = metadata.text_if_any("hybrid_override_pattern")?;
    let words: Vec<String> = match (metadata.texts_if_any(KEY)?, pattern) {
        (Some(types), _) => types.into_iter().map(str::to_owned).collect(),
        (None, Some(pattern)) => pattern.chars().map(String::from).collect(),
        (None, None) => ["M", "E", "*", "-"].map(String::from).to_vec(),
    };
    if words.is_empty() || words.len() > 4096 {
        let what = format!("must name 1 to 4096 layers (got {})", words.len());
        return Err(metadata.bad(KEY, &what));
    }
    let block = |word: &String| match word.as_str() {
        "M" | "mamba" | "linear_attention" => Ok((Mixer::Recurrent, LayerMlp::None)),
        "*" | "attention" | "full_attention" => Ok((Mixer::Attention, LayerMlp::None)),
        "-" | "mlp" => Ok((Mixer::None, LayerMlp::Dense)),
        "E" | "moe" => Ok((Mixer::None, LayerMlp::Moe)),
        other => {
            let what = format!(
                "must be linear_attention, full_attention, mlp or moe (got {})",
                describe(&other.into())
            );
            Err(metadata.unsupported(KEY, &what))
        }
    };
    words.iter().map(block).collect()
}

//! Zamba 2: Mamba-2, and a block of attention and an MLP that some layers share, each with its own adapters.
//!
//! Zyphra 2024 (Zamba2, <https://arxiv.org/abs/2411.15242>). Defaults of absent keys: transformers 5.23,
//! `configuration_zamba2.py`; scores are divided by the root of half a head's width, the convolution has a bias and the norm of
//! the mixer's output an epsilon of 1e-5 regardless of the file.

use super::bamba;
use crate::checkpoint::escape_for_terminal;
use crate::config::{
    Activation, Bias, Config, GateUp, GatedOutput, KeyHeads, LayerMlp, LayerRope, LinearAttention,
    LinearRule, LmHead, Mechanisms, Mixer, Names, Qkv, Recurrent, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, NormKey, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::check_groups;
use crate::mechanisms::shared_block::config::SharedBlock;
use ropechat_platform::error::Result;

pub(crate) static ZAMBA2: Family = Family {
    model_types: &["zamba2"],
    aliases: &[("layers_block_type", "layer_types"), ("head_dim", "attention_head_dim")],
    config,
};

const NAMES: Names = Names {
    norm: tensor!("final_layernorm"),
    mlp_norm: tensor!("pre_ff_layernorm"),
    qkv: Qkv::Separate([
        tensor!("self_attn.q_proj"),
        tensor!("self_attn.k_proj"),
        tensor!("self_attn.v_proj"),
    ]),
    gate_up_proj: GateUp::Stacked(tensor!("feed_forward.gate_up_proj")),
    down_proj: tensor!("feed_forward.down_proj"),
    recurrent: bamba::MAMBA,
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let hidden_size = metadata.integer_if_any("hidden_size", 1..=1 << 20)?.unwrap_or(2560);
    let heads = metadata.integer_if_any("num_attention_heads", 1..=1 << 16)?.unwrap_or(32);
    let words = words(metadata)?;
    let defaults = Defaults {
        names: NAMES,
        vocab_size: Some(32_000),
        num_attention_heads: Some(32),
        num_hidden_layers: Some(words.len()),
        intermediate_size: Some(4 * hidden_size),
        head_dim: HeadDim::Usually((2 * hidden_size / heads).max(1)),
        max_position_embeddings: 4096,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        activation: Activation::Gelu,
        lm_head: LmHead::Tied,
        attention_bias: BiasKey::Absent(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Key("add_bias_linear", false),
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    if config.layers.len() != words.len() {
        let what =
            format!("must name {} layers, num_hidden_layers (got {})", config.layers.len(), words.len());
        return Err(metadata.bad("layers_block_type", &what));
    }
    if config.num_key_value_heads != config.num_attention_heads {
        let what = format!("must be {}, as many as query heads", config.num_attention_heads);
        return Err(metadata.unsupported("num_key_value_heads", &what));
    }
    let blocks = metadata.integer_if_any("num_mem_blocks", 1..=1 << 12)?.unwrap_or(1);
    let hybrid: Vec<usize> = (0..words.len()).filter(|&layer| words[layer]).collect();
    for layer in &mut config.layers {
        (layer.mixer, layer.mlp) = (Mixer::Recurrent, LayerMlp::None);
    }
    hybrid.iter().for_each(|&layer| config.layers[layer].mixer = Mixer::Both);
    if !metadata.flag_or("use_mem_rope", false)? {
        config.ropes.clear();
        config.layers.iter_mut().for_each(|layer| layer.rope = LayerRope::None);
    }
    if metadata.flag_or("use_long_context", false)? {
        config.max_position_embeddings = 16_384;
    }
    for key in KEYS_WITHOUT_EFFECT {
        metadata.get(key);
    }
    let shared_block = SharedBlock {
        adapter_rank: metadata.integer_if_any("adapter_rank", 1..=1 << 16)?.unwrap_or(128),
        attention_adapter: metadata.flag_or("use_shared_attention_adapter", false)?,
        num_mem_blocks: blocks,
        layers: hybrid,
    };
    Ok(Config {
        attention_multiplier: (config.head_dim as f32 / 2.0).sqrt().recip(),
        mechanisms: Mechanisms { shared_block: Some(shared_block), ..Mechanisms::default() },
        recurrent: Some(Recurrent::Linear(mamba(metadata, &config)?)),
        ..config
    })
}

/// What follows from other keys, how training begins, how kernels work.
const KEYS_WITHOUT_EFFECT: &[&str] = &[
    "attention_hidden_size",
    "chunk_size",
    "hybrid_layer_ids",
    "kv_channels",
    "mamba_headdim",
    "num_logits_to_keep",
    "num_query_groups",
    "time_step_floor",
    "time_step_max",
    "use_conv_bias",
    "use_mamba_kernels",
    "use_mem_eff_path",
];

fn mamba(metadata: &Metadata<'_>, config: &Config) -> Result<LinearAttention> {
    let size = |key: &str, most: u64, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=most)?.unwrap_or(default))
    };
    let width = size("mamba_expand", 256, 2)? * config.hidden_size;
    let (heads, groups) = (size("n_mamba_heads", 1 << 16, 8)?, size("mamba_ngroups", 1 << 16, 1)?);
    if !width.is_multiple_of(heads) {
        let what = format!("must be a divisor of the mixer's width, {width} (got {heads})");
        return Err(metadata.bad("n_mamba_heads", &what));
    }
    let least = metadata.number_or("time_step_min", 0.0..=1e3, 0.001)? as f32;
    let linear = LinearAttention {
        rule: LinearRule::Mamba2 { time_step_limit: [least, f32::INFINITY], multipliers: [1.0; 5] },
        num_key_heads: groups,
        num_value_heads: heads,
        key_heads: KeyHeads::Grouped,
        key_dim: size("mamba_d_state", 1 << 13, 64)?,
        value_dim: width / heads,
        conv_kernel_size: size("mamba_d_conv", 256, 4)?,
        conv_bias: Bias::Added,
        conv_activation: Activation::Silu,
        in_bias: config.mlp_bias,
        out_bias: config.mlp_bias,
        output: GatedOutput::GateThenNorm { eps: 1e-5, group: width / groups },
        gate: Activation::Silu,
        gate_rank: None,
    };
    check_groups(metadata, "mamba_ngroups", linear)
}

/// Whether each layer has a shared block.
fn words(metadata: &Metadata<'_>) -> Result<Vec<bool>> {
    const KEY: &str = "layers_block_type";
    let Some(types) = metadata.texts_if_any(KEY)? else {
        // 54 layers, the default.
        let gaps = [6, 5, 5, 5, 5, 5, 5, 4, 3];
        let usual = gaps.iter().flat_map(|&gap| std::iter::repeat_n(false, gap).chain([true]));
        return Ok(usual.chain([false; 2]).collect());
    };
    let has_block = |word: &&str| match *word {
        "hybrid" => Ok(true),
        "linear_attention" | "mamba" => Ok(false),
        other => {
            let what = format!("must be hybrid or linear_attention (got \"{}\")", escape_for_terminal(other));
            Err(metadata.unsupported(KEY, &what))
        }
    };
    types.iter().map(has_block).collect()
}

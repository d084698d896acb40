//! RecurrentGemma: RG-LRU blocks, with windowed attention in every third layer; norms stored minus one as in Gemma.
//!
//! Google DeepMind 2024 (RecurrentGemma; De et al. 2024, Griffin, <https://arxiv.org/abs/2402.19427>). Defaults of absent keys:
//! transformers 5.23, `configuration_recurrent_gemma.py`; `intermediate_size` counts the widths of gate and up together, and
//! the embedding's factor is rounded to bf16 whatever the weights' type.

use crate::checkpoint::escape_for_terminal;
use crate::config::{
    Activation, Bias, Config, GateUp, InProj, LmHead, Mask, Mixer, Names, NormWeight, Qkv, Recurrent,
    RecurrentNames, Tensor, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, RopeDefaults, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::Partial;
use crate::family::keys::windows::window;
use crate::mechanisms::rg_lru::config::RgLru;
use ropechat_platform::error::Result;

pub(crate) static RECURRENT_GEMMA: Family = Family {
    model_types: &["recurrent_gemma"],
    aliases: &[("sliding_window", "attention_window_size")],
    config,
};

/// A gate's matrices and biases of all heads.
macro_rules! gates {
    ($path:literal) => {
        Tensor { weight: concat!($path, "_weight"), bias: concat!($path, "_bias") }
    };
}

const NAMES: Names = Names {
    norm: tensor!("final_norm"),
    attention_norm: tensor!("temporal_pre_norm"),
    mlp_norm: tensor!("channel_pre_norm"),
    qkv: Qkv::Separate([
        tensor!("temporal_block.q_proj"),
        tensor!("temporal_block.k_proj"),
        tensor!("temporal_block.v_proj"),
    ]),
    o_proj: tensor!("temporal_block.o_proj"),
    gate_up_proj: GateUp::Separate { gate: tensor!("mlp_block.gate_proj"), up: tensor!("mlp_block.up_proj") },
    down_proj: tensor!("mlp_block.down_proj"),
    recurrent: RecurrentNames {
        in_proj: InProj::Branches([tensor!("temporal_block.linear_x"), tensor!("temporal_block.linear_y")]),
        conv: &[tensor!("temporal_block.conv_1d")],
        a_log: "temporal_block.rg_lru.recurrent_param",
        inner: &[gates!("temporal_block.rg_lru.recurrent_gate"), gates!("temporal_block.rg_lru.input_gate")],
        out_proj: tensor!("temporal_block.linear_out"),
        ..Names::LLAMA.recurrent
    },
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        vocab_size: Some(256_000),
        num_attention_heads: Some(10),
        num_hidden_layers: Some(26),
        intermediate_size: Some(3 * 2560),
        max_position_embeddings: 8192,
        norm: NormKey::Rms("rms_norm_eps", 1e-6),
        activation_key: "hidden_activation",
        activation: Activation::GeluTanh,
        lm_head: LmHead::Tied,
        attention_out_bias: BiasKey::Absent(Bias::Added),
        mlp_bias: BiasKey::Absent(Bias::Added),
        rope: Some(RopeDefaults { partial: Partial::Usually(0.5), ..RopeDefaults::WHOLE }),
        windows: WindowKeys::OfFamily,
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    let width = metadata.integer_if_any("lru_width", 1..=1 << 20)?.unwrap_or(config.hidden_size);
    let num_heads = config.num_attention_heads;
    if !width.is_multiple_of(num_heads) {
        let what = format!("must be a multiple of num_attention_heads, {num_heads} (got {width})");
        return Err(metadata.bad("lru_width", &what));
    }
    if !metadata.flag_or("embeddings_scale_by_sqrt_dim", true)? {
        return Err(metadata.unsupported("embeddings_scale_by_sqrt_dim", "must be true (got false)"));
    }
    // How training begins, and copies of other keys.
    for key in ["w_init_variance_scale", "final_w_init_variance_scale", "_block_types"] {
        metadata.get(key);
    }
    let window = window(metadata, Some(2048))?;
    let blocks = blocks(metadata)?;
    for (layer, &mixer) in config.layers.iter_mut().zip(blocks.iter().cycle()) {
        (layer.mixer, layer.mask) = (mixer, window.map_or(Mask::Causal, Mask::Sliding));
    }
    let unit = RgLru {
        width,
        num_heads,
        conv_kernel_size: metadata.integer_if_any("conv1d_width", 1..=256)?.unwrap_or(4),
        activation: config.activation,
    };
    Ok(Config {
        intermediate_size: config.intermediate_size / 2,
        embedding_multiplier: half::bf16::from_f32((config.hidden_size as f32).sqrt()).to_f32(),
        norm_weight: NormWeight::MinusOne,
        final_logit_softcapping: Some(metadata.number_or("logits_soft_cap", 1e-3..=1e6, 30.0)? as f32),
        recurrent: Some(Recurrent::RgLru(unit)),
        ..config
    })
}

/// `block_types`, which repeat.
fn blocks(metadata: &Metadata<'_>) -> Result<Vec<Mixer>> {
    let Some(words) = metadata.texts_if_any("block_types")?.filter(|words| !words.is_empty()) else {
        return Ok(vec![Mixer::Recurrent, Mixer::Recurrent, Mixer::Attention]);
    };
    let mixer = |word: &&str| match *word {
        "recurrent" => Ok(Mixer::Recurrent),
        "attention" => Ok(Mixer::Attention),
        other => {
            let what = format!("must be recurrent or attention (got \"{}\")", escape_for_terminal(other));
            Err(metadata.unsupported("block_types", &what))
        }
    };
    words.iter().map(mixer).collect()
}

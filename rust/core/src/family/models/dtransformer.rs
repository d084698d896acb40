//! DTransformerRoPE: the pseudo-code that this project starts from, as a model.
//!
//! X. Zhan, "Pseudo code for Roformer" (2024), after Phuong and Hutter, "Formal Algorithms for Transformers" (2022).
//! Unlike all others here it rotates the *token embedding*, once, before the first layer; then pre-LayerNorm attention
//! and GELU MLP, all with biases, and a last LayerNorm. Its config.json uses the pseudo-code's letters:
//!
//! | key | meaning |
//! |---|---|
//! | `L`, `H` | layers, heads |
//! | `d_e`, `d_head`, `d_mlp` | widths of embedding, head, MLP |
//! | `N_V` | vocabulary |
//! | `l_max` (or `max_position_embeddings`) | longest sequence, 2048 when absent |
//! | `eps` | of the LayerNorms, 1e-5 when absent |
//! | `rope_theta` | base, 10000 when absent |
//! | `first_position` | number of the first token: 1 as in the text (also when absent), or 0 |
//!
//! Tensors: `W_e` [d_e, N_V], `W_u` [N_V, d_e], `gamma`, `beta`, and per layer `layers.<l>.` with `W_q`, `W_k`, `W_v`
//! [H d_head, d_e], `W_o` [d_e, H d_head], `b_q` ..., `W_mlp1`, `b_mlp1`, `W_mlp2`, `b_mlp2`, `gamma1`, `beta1`,
//! `gamma2`, `beta2`.

use crate::config::{
    Activation, Bias, Config, EmbeddingPosition, MlpShape, Names, Qkv, Rope, RopeLayout, RopeScaling, Stored,
    Tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, NormKey, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static DTRANSFORMER_ROPE: Family = Family {
    model_types: &["dtransformer_rope"],
    aliases: &[
        ("num_hidden_layers", "L"),
        ("num_attention_heads", "H"),
        ("hidden_size", "d_e"),
        ("head_dim", "d_head"),
        ("intermediate_size", "d_mlp"),
        ("vocab_size", "N_V"),
        ("max_position_embeddings", "l_max"),
        ("layer_norm_eps", "eps"),
    ],
    config,
};

const fn named(weight: &'static str, bias: &'static str) -> Tensor {
    Tensor { weight, bias }
}

const NAMES: Names = Names {
    bases: &[""],
    base: "",
    embed_tokens: "W_e",
    embedding_stored: Stored::InOut,
    norm: named("gamma", "beta"),
    lm_head: named("W_u", ""),
    attention_norm: named("gamma1", "beta1"),
    mlp_norm: named("gamma2", "beta2"),
    qkv: Qkv::Separate([named("W_q", "b_q"), named("W_k", "b_k"), named("W_v", "b_v")]),
    o_proj: named("W_o", "b_o"),
    gate_up_proj: Names::plain_up(named("W_mlp1", "b_mlp1")),
    down_proj: named("W_mlp2", "b_mlp2"),
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        head_dim: HeadDim::FreeQuotient,
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        activation: Activation::Gelu,
        attention_bias: BiasKey::Absent(Bias::Added),
        attention_out_bias: BiasKey::Absent(Bias::Added),
        mlp_bias: BiasKey::Absent(Bias::Added),
        rope: None,
        ..Defaults::LLAMA
    };
    // Descriptions for readers; each must state what is computed.
    for (key, said) in [
        ("rope_applied_to", "token embedding (before layer 0)"),
        ("rope_pairs", "interleaved"),
        ("activation", "gelu (exact, erf)"),
    ] {
        if metadata.text_if_any(key)?.is_some_and(|stated| stated != said) {
            return Err(metadata.unsupported(key, &format!("must be \"{said}\"")));
        }
    }
    let first_position = metadata.integer_if_any("first_position", 0..=1)?.unwrap_or(1);
    let theta = metadata.number_or("rope_theta", 1e-3..=1e18, 10_000.0)?;
    let config = base(metadata, &defaults)?;
    if !config.hidden_size.is_multiple_of(2) {
        let what = format!("must be even, since rotation takes pairs (got {})", config.hidden_size);
        return Err(metadata.bad("hidden_size", &what));
    }
    let rope = Rope {
        theta,
        rotary_dim: config.hidden_size,
        layout: RopeLayout::Interleaved,
        scaling: RopeScaling::None,
    };
    Ok(Config {
        position: EmbeddingPosition::Rotated { first_position },
        mlp: MlpShape::Plain,
        ropes: vec![rope],
        ..config
    })
}

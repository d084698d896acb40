//! Gemma 4, text: heads of two widths, norms on q, k and v, keys as values or keys and values of earlier layers, a factor
//! of each layer's output; in some models a second embedding or experts beside the dense MLP.
//!
//! Gemma Team 2026 (Gemma 4). Defaults of absent keys: transformers 5.23, `configuration_gemma4.py` and
//! `configuration_gemma4_unified.py`. Norm weights are stored as they are.

use super::gemma::SANDWICH;
use crate::config::{
    Bias, Config, ExpertInput, GateUp, Heads, LayerMlp, LayerScalar, Mask, Moe, MoeNames, Names,
    NormPlacement, PerLayerEmbedding, QkNorm, RopeLayout, Shared, Stored, Tensor, ValueNorm, Values, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::experts_per_token;
use crate::family::keys::rope::{Partial, RopeFacts, require_rope_of_kinds, ropes_by_kind};
use crate::family::keys::windows::{window, with_ropes, with_windows};
use ropechat_platform::error::Result;

pub(crate) static GEMMA4_TEXT: Family = Family {
    model_types: &["gemma4_text"],
    aliases: &[],
    config: |metadata| config(metadata, &Facts { window: 512, length: 131_072, per_layer: 256 }),
};

pub(crate) static GEMMA4_UNIFIED_TEXT: Family = Family {
    model_types: &["gemma4_unified_text"],
    aliases: &[],
    config: |metadata| config(metadata, &Facts { window: 1024, length: 262_144, per_layer: 0 }),
};

/// The defaults in which the two differ.
struct Facts {
    window: usize,
    length: usize,
    per_layer: usize,
}

const NAMES: Names = Names {
    bases: &["model.", "model.language_model.", "language_model.model."],
    moe: MoeNames::Fused {
        router: tensor!("router.proj"),
        gate_up: Tensor { weight: "experts.gate_up_proj", bias: "" },
        down: Tensor { weight: "experts.down_proj", bias: "" },
        stored: Stored::OutIn,
        shared: Shared {
            gate_up: GateUp::Separate { gate: tensor!("mlp.gate_proj"), up: tensor!("mlp.up_proj") },
            down: tensor!("mlp.down_proj"),
        },
    },
    ..SANDWICH.names
};

fn config(metadata: &Metadata<'_>, facts: &Facts) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        num_attention_heads: Some(8),
        num_key_value_heads: KvHeads::Usually(4),
        head_dim: HeadDim::Usually(256),
        max_position_embeddings: facts.length,
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: None,
        ..SANDWICH
    };
    let config = base(metadata, &defaults)?;
    if metadata.text_if_any("use_bidirectional_attention")? == Some("all") {
        let what =
            "must be null or \"vision\", which changes pictures only (got \"all\"); a decoder is needed";
        return Err(metadata.unsupported("use_bidirectional_attention", what));
    }
    let window = window(metadata, Some(facts.window))?;
    let last = config.layers.len() - 1;
    let mut config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(6))?;
    config.layers[last].mask = Mask::Causal;

    heads(metadata, &mut config)?;
    check_widths(metadata, &config)?;
    // What is rotated depends on a layer's kind alone.
    let width_of = |is_full: bool| {
        let mut heads = config.all_heads().zip(&config.layers);
        let of_kind = heads.find(|(_, layer)| (layer.mask == Mask::Causal) == is_full);
        of_kind.map_or(config.head_dim, |(heads, _)| heads.head_dim)
    };
    let rope = |theta, head_dim, partial| RopeFacts {
        theta,
        head_dim,
        partial,
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let full = rope(1e6, width_of(true), Partial::OfProportional(0.25));
    let local = rope(1e4, width_of(false), Partial::Whole);
    let kinds = ["full_attention", "sliding_attention"];
    require_rope_of_kinds(metadata, kinds)?;
    let ropes = ropes_by_kind(metadata, kinds, ["rope_theta", "rope_local_base_freq"], [full, local])?;
    let mut config = with_ropes(config, ropes);

    let shared = metadata.integer_if_any("num_kv_shared_layers", 0..=1 << 16)?.unwrap_or(0);
    share_keys_and_values(metadata, &mut config, shared)?;
    if metadata.flag_or("use_double_wide_mlp", false)? {
        let wide = 2 * config.intermediate_size;
        let sharing = config.layers.iter_mut().filter(|layer| layer.shares_kv_of.is_some());
        sharing.for_each(|layer| layer.intermediate_size = Some(wide));
    }
    if metadata.flag_or("enable_moe_block", false)? {
        let num_experts = metadata.integer("num_experts", 1..=1 << 16)?;
        let per_token = experts_per_token(metadata, "top_k_experts", num_experts, None)?;
        let width = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
        config.moe = Some(Moe { input: ExpertInput::OwnNorm, ..Moe::plain(num_experts, per_token, width) });
        config.layers.iter_mut().for_each(|layer| layer.mlp = LayerMlp::DenseAndMoe);
    } else {
        for key in ["num_experts", "top_k_experts", "moe_intermediate_size"] {
            metadata.get(key);
        }
    }
    let cap = metadata.number_if_any("final_logit_softcapping", 1e-3..=1e6)?;
    Ok(Config {
        embedding_multiplier: (config.hidden_size as f32).sqrt(),
        norm_placement: NormPlacement::Around,
        attention_multiplier: 1.0,
        qk_norm: QkNorm::PerHead(Bias::None),
        value_norm: ValueNorm::PerHead,
        layer_scalar: LayerScalar::Learned,
        per_layer_embedding: per_layer_embedding(metadata, facts.per_layer)?,
        final_logit_softcapping: cap.map(|cap| cap as f32),
        ..config
    })
}

/// `hidden_size_per_layer_input`, 0 for none.
pub(crate) fn per_layer_embedding(
    metadata: &Metadata<'_>,
    default: usize,
) -> Result<Option<PerLayerEmbedding>> {
    let width = metadata.integer_if_any("hidden_size_per_layer_input", 0..=1 << 16)?.unwrap_or(default);
    let vocab = metadata.integer_if_any("vocab_size_per_layer_input", 1..=1 << 26)?.unwrap_or(262_144);
    Ok((width > 0).then_some(PerLayerEmbedding {
        hidden_size_per_layer_input: width,
        vocab_size_per_layer_input: vocab,
    }))
}

/// The last `shared` layers read the keys and values of the last earlier layer of their kind.
pub(crate) fn share_keys_and_values(
    metadata: &Metadata<'_>,
    config: &mut Config,
    shared: usize,
) -> Result<()> {
    const KEY: &str = "num_kv_shared_layers";
    let Some(first) = config.layers.len().checked_sub(shared).filter(|&first| first > 0) else {
        return Err(metadata.bad(KEY, &format!("must be less than the layers (got {shared})")));
    };
    let kind = |layer: usize| config.layers[layer].mask == Mask::Causal;
    let sources = (first..config.layers.len()).map(|layer| (0..first).rfind(|&own| kind(own) == kind(layer)));
    let Some(sources) = sources.collect::<Option<Vec<usize>>>() else {
        return Err(metadata.bad(KEY, "must leave a layer of each kind with its own keys"));
    };
    for (layer, source) in (first..).zip(sources) {
        let [own, read] = [layer, source].map(|layer| config.heads(&config.layers[layer]));
        if own != read {
            let what = format!(
                "layer {layer} reads the keys and values of layer {source}, which has other heads ({} of width {}, \
                 and it has {} of width {}); correct the heads of the two",
                read.num_key_value_heads, read.head_dim, own.num_key_value_heads, own.head_dim
            );
            return Err(metadata.bad(KEY, &what));
        }
        config.layers[layer].shares_kv_of = Some(source);
    }
    Ok(())
}

/// The layers of one kind rotate alike, and so must have heads of one width.
fn check_widths(metadata: &Metadata<'_>, config: &Config) -> Result<()> {
    for (index, layer) in config.layers.iter().enumerate() {
        let first = config.layers.iter().find(|other| other.mask == layer.mask).unwrap_or(layer);
        let [width, other] = [layer, first].map(|layer| config.heads(layer).head_dim);
        if width != other {
            let what = format!(
                "must be the same in all layers of one of the layer_types (got {width} in layer {index} and {other} \
                 in an earlier one)"
            );
            return Err(metadata.bad("per_layer_config", &format!("head_dim: {what}")));
        }
    }
    Ok(())
}

/// Heads of layers without a window: `per_layer_config`, or (as published) `global_head_dim` and
/// `num_global_key_value_heads`; their values where these are the keys' projection.
fn heads(metadata: &Metadata<'_>, config: &mut Config) -> Result<()> {
    let keys_as_values = metadata.flag_or("attention_k_eq_v", false)?;
    let usual = config.heads(&config.layers[0]);
    let width = |of: &Metadata<'_>, key: &str, range| of.integer_if_any(key, range);
    let global_dim = width(metadata, "global_head_dim", 1..=1 << 13)?.unwrap_or(512);
    let global_heads = width(metadata, "num_global_key_value_heads", 1..=1 << 16)?.filter(|_| keys_as_values);
    let listed = metadata.object_if_any("per_layer_config")?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let full = layer.mask == Mask::Causal;
        let number = format!("{index}");
        let own = match &listed {
            Some(listed) => listed.object_if_any(&number)?,
            None => None,
        };
        let (dim, groups) = match (&listed, &own) {
            (None, _) if full => (global_dim, global_heads),
            (_, None) => (usual.head_dim, None),
            (_, Some(own)) => (
                own.integer_if_any("head_dim", 1..=1 << 13)?.unwrap_or(usual.head_dim),
                own.integer_if_any("num_key_value_heads", 1..=1 << 16)?,
            ),
        };
        if let Some(own) = &own {
            crate::family::keys::known::refuse_unknown(own)?;
        }
        let groups = groups.unwrap_or(usual.num_key_value_heads);
        if !usual.num_attention_heads.is_multiple_of(groups) {
            let what = format!("must be divisors of num_attention_heads (got {groups} in layer {index})");
            return Err(metadata.bad("num_key_value_heads", &what));
        }
        let own = Heads { num_key_value_heads: groups, head_dim: dim, v_head_dim: dim, ..usual };
        layer.heads = (own != usual).then_some(own);
        if full && keys_as_values {
            layer.values = Values::OfKeyProjection;
        }
    }
    Ok(())
}

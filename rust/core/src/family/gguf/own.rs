//! Keys of single architectures that are not in their files as config.json has them.

use serde_json::{Map, Value, json};

use super::rope;
use super::source::Source;
use super::translated::Translated;
use ropechat_platform::error::Result;

/// The width of a shared expert, where it follows from others.
const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";
const PATTERN: &str = "attention.sliding_window_pattern";
/// `rope.freq_base_swa` of files without the key, where it is not that of all layers (llama.cpp).
const WINDOWED_THETA: f64 = 10_000.0;
const HEAD_COUNT_KV: &str = "attention.head_count_kv";

pub(super) fn falcon(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    out.set("num_ln_in_parallel_attn", if source.has_in_layer("attn_norm_2.weight") { 2 } else { 1 });
    Ok(())
}

/// Some files state the wrong value; parallel blocks have no norm before the MLP.
pub(super) fn stablelm(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    source.get("use_parallel_residual")?;
    out.set("use_parallel_residual", !source.has_in_layer("ffn_norm.weight"));
    Ok(())
}

/// A limit of 0 is none.
pub(super) fn olmo(_: &Source<'_>, out: &mut Translated) -> Result<()> {
    if out.values.get("clip_qkv").and_then(Value::as_f64) == Some(0.0) {
        out.values.remove("clip_qkv");
    }
    Ok(())
}

/// OLMo 3 is OLMo 2 with windows.
pub(super) fn olmo2(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    if out.values.contains_key("sliding_window") {
        out.set("model_type", "olmo3");
        rope::by_kind(source, out, None, None)?;
    }
    Ok(())
}

/// Ministral 3 is Mistral whose queries grow with their position.
pub(super) fn mistral3(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    if let Some(beta) = source.get("attention.temperature_scale")? {
        out.set("model_type", "ministral3");
        rope::add(out, "llama_4_scaling_beta", beta);
    }
    // Here it is mscale_all_dim itself; mscale is 1 in all published models.
    if let Some(scale) = source.get("rope.scaling.yarn_log_multiplier")? {
        rope::add(out, "mscale", 1.0);
        rope::add(out, "mscale_all_dim", scale);
    }
    Ok(())
}

/// The length from which queries grow is the trained one.
pub(super) fn mistral4(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    const LENGTH: &str = "attention.temperature_length";
    let trained = source.get("rope.scaling.original_context_length")?;
    if let Some(other) = source.get(LENGTH)?.filter(|length| Some(length) != trained.as_ref()) {
        let what = format!("must be rope.scaling.original_context_length (got {other})");
        return Err(source.unsupported(&source.full(LENGTH), what));
    }
    if let Some(beta) = source.get("attention.temperature_scale")? {
        rope::add(out, "llama_4_scaling_beta", beta);
    }
    Ok(())
}

/// llama.cpp tells the variant without norms on q and k by its experts, and the one without chunks by its window of 0.
pub(super) fn llama4(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    if source.whole("expert_count")? == Some(128) {
        out.set("use_qk_norm", false);
    }
    if source.whole("attention.sliding_window")? == Some(0) {
        out.set("attention_chunk_size", Value::Null);
        out.set("no_rope_layer_interval", source.num_layers()?.unwrap_or(0).saturating_add(1));
    }
    Ok(())
}

/// Their width is that of the routed ones, times their number.
pub(super) fn shared_experts(source: &Source<'_>, _: &mut Translated) -> Result<()> {
    source.get(SHARED_WIDTH).map(|_| ())
}

/// All experts of a layer have one width.
pub(super) fn hunyuan_moe(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    out.take(source, "intermediate_size", "expert_feed_forward_length")?;
    let width = out.values.get("intermediate_size").cloned();
    match source.get(SHARED_WIDTH)?.filter(|shared| Some(shared) != width.as_ref()) {
        None => Ok(()),
        Some(other) => {
            let what = format!("must be the width of the other experts (got {other})");
            Err(source.unsupported(&source.full(SHARED_WIDTH), what))
        }
    }
}

/// Shared experts by their number, and mixtures in the layers that have a router.
pub(super) fn hy_v3(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    let shared = source.whole(SHARED_WIDTH)?.unwrap_or(0);
    let width = out.whole("moe_intermediate_size").filter(|width| *width > 0).unwrap_or(1);
    if !shared.is_multiple_of(width) {
        let what = format!("must be a multiple of the other experts' width, {width} (got {shared})");
        return Err(source.unsupported(&source.full(SHARED_WIDTH), what));
    }
    out.set("num_shared_experts", shared / width);
    layers_with_router(source, out)
}

fn layers_with_router(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    let routed = |layer| source.checkpoint.contains(&format!("blk.{layer}.ffn_gate_inp.weight"));
    let layers = 0..source.num_layers()?.unwrap_or(0).min(source.checkpoint.names().count() as u64);
    let kinds: Vec<&str> = layers.map(|layer| if routed(layer) { "sparse" } else { "dense" }).collect();
    out.set("mlp_layer_types", kinds);
    Ok(())
}

pub(super) fn cohere2moe(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    const GATING: &str = "expert_gating_func";
    source.get(SHARED_WIDTH)?;
    let word = match source.get(GATING)?.map_or(Some(2), |gating| gating.as_u64()) {
        Some(1) => "softmax",
        Some(2) => "sigmoid",
        _ => {
            let what = "must be 1 (softmax) or 2 (sigmoid)".to_owned();
            return Err(source.unsupported(&source.full(GATING), what));
        }
    };
    out.set("expert_selection_fn", word);
    Ok(())
}

/// The attention factor counts at all lengths.
pub(super) fn phimoe(_: &Source<'_>, out: &mut Translated) -> Result<()> {
    let factor = |value: &Value| value.get("attention_factor").cloned();
    if let Some(parameters) = out.values.get("rope_scaling") {
        let factor = factor(parameters).unwrap_or_else(|| 1.0.into());
        rope::add(out, "short_mscale", factor.clone());
        rope::add(out, "long_mscale", factor);
    }
    Ok(())
}

/// Numbers of query heads by layer, and gates per head or per channel.
pub(super) fn laguna(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    if let Some(Value::Array(counts)) = out.values.get("num_attention_heads").cloned() {
        let most = counts.iter().filter_map(Value::as_u64).max();
        out.set("num_attention_heads_per_layer", counts);
        out.set("num_attention_heads", most);
    }
    let rows = source.shape_in_layers("attn_gate.weight").and_then(|shape| shape.first().copied());
    let outputs = source.shape_in_layers("attn_output.weight").and_then(|shape| shape.get(1).copied());
    out.set("gating", if rows == outputs { "per-element" } else { "per-head" });
    let layers = source.num_layers()?.unwrap_or(0).min(1 << 16);
    if source.whole("attention.sliding_window")?.unwrap_or(0) == 0 {
        out.set("sliding_window", Value::Null);
    } else if !out.values.contains_key("layer_types") {
        let kind = |layer: u64| if layer.is_multiple_of(4) { "full_attention" } else { "sliding_attention" };
        out.set("layer_types", (0..layers).map(kind).collect::<Vec<_>>());
    }
    let head_dim = out.whole("head_dim");
    rope::by_kind(source, out, head_dim, None)
}

pub(super) fn mellum(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    layers_with_router(source, out)?;
    rope::by_kind(source, out, None, None)
}

/// Twice the key/value heads in windowed layers.
pub(super) fn mimo2(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    if let (Some(heads), Some(slides)) = (source.per_layer(HEAD_COUNT_KV)?, slides(source)?) {
        let full = heads.iter().zip(&slides).find(|(_, slides)| !**slides).and_then(|(n, _)| n.as_u64());
        let fits = |(heads, slides): (&Value, &bool)| {
            heads.as_u64() == full.map(|full| full.saturating_mul(1 + u64::from(*slides)))
        };
        if full.is_none() || !heads.iter().zip(&slides).all(fits) {
            let what = "must be twice as many in layers with a window".to_owned();
            return Err(source.unsupported(&source.full(HEAD_COUNT_KV), what));
        }
        out.set("num_key_value_heads", full);
    }
    layers_with_router(source, out)?;
    rope::by_kind(source, out, None, Some(WINDOWED_THETA))
}

/// Which layers have a window, where the file has a list.
fn slides(source: &Source<'_>) -> Result<Option<Vec<bool>>> {
    let slides = |flag: &Value| flag.as_bool().unwrap_or(flag.as_u64() != Some(0));
    Ok(source.per_layer(PATTERN)?.map(|flags| flags.iter().map(slides).collect()))
}

/// The size of the second embedding and the rank of the low-rank branch are those of their tensors.
pub(super) fn gemma3n(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    second_embedding(source, out);
    if let Some(rank) = source.shape_in_layers("laurel_l.weight").and_then(|shape| shape.first()) {
        out.set("laurel_rank", *rank);
    }
    Ok(())
}

fn second_embedding(source: &Source<'_>, out: &mut Translated) {
    if let Some(table) = source.checkpoint.tensor("per_layer_token_embd.weight") {
        out.set("vocab_size_per_layer_input", table.shape.first().copied());
    }
}

/// Layers without a window have heads of their own, and a rope that leaves the last pairs as they are.
pub(super) fn gemma4(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    second_embedding(source, out);
    let (full, local) = (source.whole("attention.key_length")?, source.whole("attention.key_length_swa")?);
    for (key, width) in [("attention.value_length_swa", local), ("rope.dimension_count_swa", local)] {
        if let Some(other) = source.get(key)?.filter(|stated| stated.as_u64() != width) {
            let what = format!("must be the width of keys (got {other})");
            return Err(source.unsupported(&source.full(key), what));
        }
    }
    out.set("head_dim", local);
    let slides = slides(source)?.unwrap_or_default();
    let heads = source.per_layer(HEAD_COUNT_KV)?;
    let heads_of = |layer: usize| match &heads {
        Some(heads) => heads.get(layer).cloned(),
        None => out.values.get("num_key_value_heads").cloned(),
    };
    let first = |kind: bool| slides.iter().position(|slides| *slides == kind);
    let usual = first(true).and_then(heads_of);
    let mut of_layers = Map::new();
    for (layer, _) in slides.iter().enumerate().filter(|(_, slides)| !**slides) {
        let own = json!({"head_dim": full, "num_key_value_heads": heads_of(layer)});
        of_layers.insert(layer.to_string(), own);
    }
    out.set("per_layer_config", of_layers);
    if let Some(usual) = usual {
        out.set("num_key_value_heads", usual);
    }
    if let Some(layer) = first(false) {
        let has_values = source.checkpoint.contains(&format!("blk.{layer}.attn_v.weight"))
            || source.checkpoint.contains(&format!("blk.{layer}.attn_qkv.weight"));
        out.set("attention_k_eq_v", !has_values);
    }
    // Layers that share keys and values may have MLPs of twice the width.
    if let Some(Value::Array(widths)) = out.values.get("intermediate_size").cloned() {
        let width = widths.first().cloned();
        out.set("intermediate_size", width);
        out.set("use_double_wide_mlp", true);
    }
    let experts = source.whole("expert_count")?.unwrap_or(0);
    out.set("enable_moe_block", experts > 0);
    rope::by_kind(source, out, local, Some(WINDOWED_THETA))?;
    proportional(source, out, full.unwrap_or(0) / 2)
}

/// The divisors of layers without a window say which of their pairs are rotated: 1, or so large that nothing turns.
fn proportional(source: &Source<'_>, out: &mut Translated, pairs: u64) -> Result<()> {
    const STILL: f64 = 1e29;
    if !source.checkpoint.contains(rope::FREQS) {
        return Ok(());
    }
    let divisors = rope::divisors(source, rope::FREQS)?;
    let rotated = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    if divisors.len() as u64 != pairs || divisors[rotated..].iter().any(|divisor| *divisor < STILL) {
        let what = format!("must hold {pairs} divisors, ones and then 1e30 (got {})", divisors.len());
        return Err(source.unsupported(rope::FREQS, what));
    }
    let share = rope::share_of(rotated as u64, divisors.len() as u64);
    if let Some(full) = out.values.get_mut("rope_parameters").and_then(|all| all.get_mut("full_attention")) {
        full["rope_type"] = "proportional".into();
        full["partial_rotary_factor"] = share.into();
    }
    Ok(())
}

/// Which layers have an indexer of their own.
pub(super) fn indexer(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    if let Some(full) = source.per_layer("attention.indexer.types")? {
        let kind = |flag: &Value| if flag.as_bool() == Some(false) { "shared" } else { "full" };
        out.set("indexer_types", full.iter().map(kind).collect::<Vec<_>>());
    }
    Ok(())
}

/// Layers that do not rotate have the base 0.
pub(super) fn granite_swa(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    let theta = out.values.get("rope_theta").cloned().unwrap_or_default();
    if let Some(rotated) = source.per_layer("attention.rope_pattern")? {
        let base = |flag: &Value| if flag.as_bool() == Some(false) { 0.into() } else { theta.clone() };
        out.set("layer_rope_theta", rotated.iter().map(base).collect::<Vec<_>>());
    }
    Ok(())
}

/// Without the key the activation is SiLU (llama.cpp), as the first BitNet models have it. Files of later ones, which have fewer
/// heads of keys, were written without it too, and no other key tells what they need.
pub(super) fn bitnet(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    const KEY: &str = "hidden_activation";
    if out.values.contains_key("hidden_act") {
        return Ok(());
    }
    let heads = |key| out.values.get(key);
    if heads("num_attention_heads") != heads("num_key_value_heads") {
        let what = "it is missing; \"relu2\" or \"silu\" is needed, since models of both have such heads; \
                    convert the model again with a newer llama.cpp, or use its safetensors";
        return Err(source.unsupported(&source.full(KEY), what.to_owned()));
    }
    out.set("hidden_act", "silu");
    Ok(())
}

/// The epsilon may stand under both of its names.
pub(super) fn exaone(source: &Source<'_>, _: &mut Translated) -> Result<()> {
    source.get("attention.layer_norm_epsilon").map(|_| ())
}

/// Rotation by axes of pictures goes with another order of the rows of q and k.
pub(super) fn glm4(source: &Source<'_>, _: &mut Translated) -> Result<()> {
    const SECTIONS: &str = "rope.dimension_sections";
    match source.get(SECTIONS)? {
        None => Ok(()),
        Some(other) => {
            let what = format!("must be absent, since the text part is rotated by halves here (got {other})");
            Err(source.unsupported(&source.full(SECTIONS), what))
        }
    }
}

/// MiniCPM 1 to 4 have Granite's multipliers, and the usual factor of scores. Old files leave them out: 12 for the
/// embedding, 1.4 by depth, 256 by width.
pub(super) fn minicpm(_: &Source<'_>, out: &mut Translated) -> Result<()> {
    let sizes = (out.whole("num_hidden_layers"), out.whole("hidden_size"));
    if let (Some(layers @ 1..), Some(hidden @ 1..)) = sizes {
        let depth = 1.4 / (layers as f64).sqrt();
        let usual = [
            ("embedding_multiplier", 12.0),
            ("residual_multiplier", depth),
            ("logits_scaling", hidden as f64 / 256.0),
        ];
        for (key, value) in usual {
            out.values.entry(key).or_insert(value.into());
        }
    }
    if let Some(head_dim) = out.whole("head_dim").filter(|head_dim| *head_dim > 0) {
        out.set("attention_multiplier", 1.0 / (head_dim as f64).sqrt());
    }
    Ok(())
}

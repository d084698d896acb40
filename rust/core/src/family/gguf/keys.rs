//! From an architecture's GGUF keys to the keys of config.json.

use serde_json::{Value, json};

use super::arch::{Arch, Rotary};
use super::source::Source;
use super::translated::Translated;
use super::{mla, rope};
use crate::checkpoint::escape_for_terminal;
use crate::checkpoint::gguf::{self, Kind};
use crate::checkpoint::json::describe;
use ropechat_platform::error::Result;

/// Keys that all architectures share: (of config.json, of the file).
const COMMON: &[(&str, &str)] = &[
    ("vocab_size", "vocab_size"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", HEAD_DIM),
];
/// `rope.freq_base` of files without the key (llama.cpp).
const USUAL_THETA: f64 = 10_000.0;
/// Beyond any model's `embedding_length`.
const WIDEST: u64 = 1 << 24;
const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
const HEAD_DIM: &str = "attention.key_length";
const ROTARY_DIM: &str = "rope.dimension_count";
const EXPERTS: &str = "expert_count";
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// Translates all keys that config.json would have.
///
/// Errors: `Config` for sizes that do not fit each other, `Unsupported` for scaling types that are not known.
pub(super) fn translate(source: &Source<'_>, arch: &Arch) -> Result<Translated> {
    let mut out = Translated::default();
    for (key, own) in COMMON.iter().chain(arch.shared_keys).chain(arch.keys) {
        out.take(source, key, own)?;
    }
    out.origins.insert("num_hidden_layers".to_owned(), source.full("block_count"));
    if let Some(layers) = source.num_layers()?.map(Value::from).or(source.get("block_count")?) {
        out.set("num_hidden_layers", layers);
    }
    // No layer is dense.
    if let (None, Some(width)) =
        (out.values.get("intermediate_size"), source.whole("expert_feed_forward_length")?)
    {
        out.set("intermediate_size", width);
    }
    let epsilon = match arch.epsilon {
        "rms_norm_eps" => RMS_EPSILON,
        _ if source.get(RMS_EPSILON)?.is_some() => RMS_EPSILON,
        _ => "attention.layer_norm_epsilon",
    };
    out.take(source, arch.epsilon, epsilon)?;
    for (key, own) in [("max_position_embeddings", "context_length"), (arch.epsilon, epsilon)] {
        if !out.values.contains_key(key) {
            return Err(source.bad(&source.full(own), "it is missing; a number is needed".to_owned()));
        }
    }
    // Absent, it is as many as the queries have, whatever the family's class says (llama.cpp).
    if let (None, Some(heads)) =
        (out.values.get("num_key_value_heads"), out.values.get("num_attention_heads").cloned())
    {
        out.set("num_key_value_heads", heads);
    }
    for (key, tensor) in arch.flags {
        let before = out.values.get(*key) == Some(&Value::Bool(true));
        out.set(key, before || source.has_in_layers(tensor));
    }
    out.set("tie_word_embeddings", !source.checkpoint.contains("output.weight"));
    vocabulary(source, &mut out)?;
    experts(source, arch, &mut out)?;
    let head_dim = match arch.rotary {
        Rotary::Mla => mla::translate(source, arch, &mut out).map(|()| None)?,
        Rotary::None | Rotary::Whole | Rotary::Share => heads(source, arch, &mut out)?,
    };
    if let (Some(layers), Some(head_dim)) = (arch.layers_of_quotient_scale, head_dim) {
        let layers_match = source.num_layers()? == Some(layers);
        let (hidden, heads) = (source.whole("embedding_length")?, source.whole("attention.head_count")?);
        match (hidden, heads) {
            (Some(hidden), Some(heads)) if layers_match && heads > 0 => {
                out.set("query_pre_attn_scalar", hidden as f64 / heads as f64);
            }
            _ => out.set("query_pre_attn_scalar", head_dim),
        }
    }
    windows(source, arch, &mut out)?;
    if matches!(arch.rotary, Rotary::Whole | Rotary::Share) {
        rotary(source, arch, head_dim, &mut out)?;
    }
    if arch.rotary != Rotary::None {
        out.take(source, "rope_theta", "rope.freq_base")?;
        out.values.entry("rope_theta").or_insert(USUAL_THETA.into());
        rope::scaling(source, arch, &mut out)?;
    }
    for (key, value) in arch.facts {
        out.values.entry(*key).or_insert_with(|| json_of(value));
    }
    (arch.own)(source, &mut out)?;
    one_base(source, arch, &out)?;
    for (own, value) in arch.fixed {
        let expected = json_of(value);
        if let Some(other) = source.get(own)?.filter(|stated| *stated != expected) {
            let what = format!("must be {} (got {})", describe(&expected), describe(&other));
            return Err(source.unsupported(&source.full(own), what));
        }
    }
    Ok(out)
}

/// One base for all layers, unless the family has two.
fn one_base(source: &Source<'_>, arch: &Arch, out: &Translated) -> Result<()> {
    const WINDOWED: &str = "rope.freq_base_swa";
    let has_two =
        out.values.contains_key("rope_parameters") || arch.keys.iter().any(|(_, own)| *own == WINDOWED);
    match source.get(WINDOWED)? {
        Some(other) if !has_two && Some(&other) != out.values.get("rope_theta") => {
            let what = format!("must be the base of all layers (got {other})");
            Err(source.unsupported(&source.full(WINDOWED), what))
        }
        _ => Ok(()),
    }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// `bos_token_id`, the ids that end a text, and how many ids there are: as many as the embedding has rows.
fn vocabulary(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    if !out.values.contains_key("vocab_size")
        && let Some(tensor) = source.checkpoint.tensor("token_embd.weight")
        && let Some(&rows) = tensor.shape.first()
    {
        out.set("vocab_size", rows);
    }
    let mut ends = Vec::new();
    for (key, own) in [
        ("bos_token_id", "tokenizer.ggml.bos_token_id"),
        ("eos_token_id", "tokenizer.ggml.eos_token_id"),
        ("eos_token_id", "tokenizer.ggml.eot_token_id"),
        ("eos_token_id", "tokenizer.ggml.eom_token_id"),
    ] {
        out.origins.entry(key.to_owned()).or_insert_with(|| own.to_owned());
        match source.of_file(own)? {
            Some(id) if key == "eos_token_id" => ends.push(id),
            Some(id) => out.set(key, id),
            None => {}
        }
    }
    if !ends.is_empty() {
        out.set("eos_token_id", ends);
    }
    // Read as numbers by the tokenizer, which no longer sees their type.
    for (key, allowed, word) in [
        ("tokenizer.ggml.token_type", &[Kind::I32, Kind::U32][..], "i32"),
        ("tokenizer.ggml.scores", &[Kind::F32][..], "f32"),
    ] {
        if let Some(gguf::Value::List(list)) = source.metadata.get(key)
            && !allowed.contains(&list.kind())
        {
            let found = format!("{:?}", list.kind()).to_lowercase();
            return Err(source.bad(key, format!("must be a list of {word} (got a list of {found})")));
        }
    }
    Ok(())
}

/// `model_type`, and the experts' keys of architectures that may or may not have them.
fn experts(source: &Source<'_>, arch: &Arch, out: &mut Translated) -> Result<()> {
    let count = source.whole(EXPERTS)?.unwrap_or(0);
    out.set("model_type", arch.model_type);
    if arch.keys.iter().chain(arch.shared_keys).any(|(_, own)| *own == EXPERTS) {
        return Ok(());
    }
    source.get("expert_used_count")?;
    match arch.mixture {
        _ if count == 0 => Ok(()),
        Some(mixture) => {
            out.set("model_type", mixture);
            out.take(source, "num_local_experts", EXPERTS)?;
            out.take(source, "num_experts_per_tok", "expert_used_count")
        }
        None => {
            let what = format!(
                "must be 0, since {} has no experts here (got {count})",
                escape_for_terminal(arch.name)
            );
            Err(source.unsupported(&source.full(EXPERTS), what))
        }
    }
}

/// Width of a head: as stated, or hidden_size / heads. None when the sizes are not numbers, which the family then refuses.
fn heads(source: &Source<'_>, arch: &Arch, out: &mut Translated) -> Result<Option<u64>> {
    let stated = source.whole(HEAD_DIM)?;
    let (hidden, heads) = (source.whole("embedding_length")?, source.whole("attention.head_count")?);
    let head_dim = match (stated, hidden, heads) {
        (Some(stated), ..) => stated,
        (None, Some(hidden @ 1..=WIDEST), Some(heads @ 1..)) => {
            if !hidden.is_multiple_of(heads) {
                let count = source.full("attention.head_count");
                let what = format!("must be a multiple of {heads}, {count} (got {hidden})");
                return Err(source.bad(&source.full("embedding_length"), what));
            }
            out.set("head_dim", hidden / heads);
            hidden / heads
        }
        _ => return Ok(None),
    };
    const VALUE_DIM: &str = "attention.value_length";
    if arch.keys.iter().any(|(_, own)| *own == VALUE_DIM) {
        return Ok(Some(head_dim));
    }
    if let Some(other) = source.get(VALUE_DIM)?.filter(|value| value.as_u64() != Some(head_dim)) {
        let what = format!("must be {head_dim}, the width of keys (got {other})");
        return Err(source.unsupported(&source.full(VALUE_DIM), what));
    }
    Ok(Some(head_dim))
}

/// Which layers slide: a number n (every n-th does not), or a list with a flag per layer.
fn windows(source: &Source<'_>, arch: &Arch, out: &mut Translated) -> Result<()> {
    if !arch.keys.iter().any(|(key, _)| *key == "sliding_window") {
        return Ok(());
    }
    let listed = source.per_layer(WINDOW_PATTERN)?.map(Value::Array);
    match listed.or(source.get(WINDOW_PATTERN)?) {
        Some(Value::Array(flags)) => {
            out.origins.insert("layer_types".to_owned(), source.full(WINDOW_PATTERN));
            let kind = |slides| if slides { "sliding_attention" } else { "full_attention" };
            let slides = |flag: &Value| flag.as_bool().or(flag.as_u64().map(|flag| flag != 0));
            let types: Option<Vec<&str>> = flags.iter().map(|flag| slides(flag).map(kind)).collect();
            let what = || "must be one flag per layer (got a list)".to_owned();
            let types = types.ok_or_else(|| source.bad(&source.full(WINDOW_PATTERN), what()))?;
            out.set("layer_types", json!(types));
        }
        Some(other) => {
            out.origins.insert("sliding_window_pattern".to_owned(), source.full(WINDOW_PATTERN));
            out.set("sliding_window_pattern", other);
        }
        None => {}
    }
    Ok(())
}

/// How much of a head is rotated.
fn rotary(source: &Source<'_>, arch: &Arch, head_dim: Option<u64>, out: &mut Translated) -> Result<()> {
    let (Some(stated), Some(head_dim)) = (source.get(ROTARY_DIM)?, head_dim) else {
        // Without this key llama.cpp rotates whole heads, whatever the default of the family's class in transformers is.
        if arch.rotary == Rotary::Share {
            out.set("partial_rotary_factor", 1.0);
        }
        return Ok(());
    };
    let dim = stated.as_u64().unwrap_or(0);
    let fits = match arch.rotary {
        Rotary::Share => dim > 0 && dim <= head_dim && dim.is_multiple_of(2),
        _ => dim == head_dim,
    };
    if !fits {
        let allowed = match arch.rotary {
            Rotary::Share => format!("an even number up to the head's width ({head_dim})"),
            _ => format!("the head's width ({head_dim})"),
        };
        return Err(source.bad(&source.full(ROTARY_DIM), format!("must be {allowed} (got {stated})")));
    }
    if arch.rotary == Rotary::Share {
        out.origins.insert("partial_rotary_factor".to_owned(), source.full(ROTARY_DIM));
        out.set("partial_rotary_factor", rope::share_of(dim, head_dim));
    }
    Ok(())
}

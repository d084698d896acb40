//! Scaled rotation: keys below `rope.scaling.`, and tensors of divisors.

use serde_json::{Map, Value, json};

use super::arch::{Arch, Rotary};
use super::source::Source;
use super::translated::Translated;
use crate::checkpoint::json::describe;
use ropechat_platform::error::Result;

/// Divisors of the frequencies (llama 3's scaling, computed by the converter).  // [rotary_dim / 2]
pub(super) const FREQS: &str = "rope_freqs.weight";
/// Divisors within the trained length and beyond it (longrope).  // [rotary_dim / 2]
pub(super) const FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ATTENTION: &str = "rope.scaling.attn_factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";

/// `rope_scaling` of config.json, when there is any.
pub(super) fn scaling(source: &Source<'_>, arch: &Arch, out: &mut Translated) -> Result<()> {
    let keys =
        [("rope_type", TYPE), ("factor", FACTOR), (ORIGINAL_KEY, ORIGINAL), ("attention_factor", ATTENTION)];
    for (key, own) in keys {
        out.origins.insert(format!("rope_scaling.{key}"), source.full(own));
    }
    let has_factors = FACTORS.iter().any(|name| source.checkpoint.contains(name));
    let (factor, original) = (source.get(FACTOR)?, source.get(ORIGINAL)?);
    // A factor without a type is linear, and longrope's tensors need no word (llama.cpp).
    let usual = match (has_factors, &factor) {
        (true, _) => "longrope",
        (false, Some(_)) => "linear",
        (false, None) => "none",
    };
    let stated = source.get(TYPE)?.unwrap_or_else(|| usual.into());
    let kind = match stated.as_str() {
        Some("none") if has_factors => Some("longrope"),
        kind => kind,
    };
    let mut parameters = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            parameters.insert(key.to_owned(), value);
        }
    };
    put("rope_type", kind.map(Value::from));
    match kind {
        Some("none") => {
            source.get(ATTENTION)?;
            return Ok(());
        }
        Some("linear") => put("factor", factor),
        Some("yarn") => {
            put("factor", factor.clone());
            put(ORIGINAL_KEY, original);
            yarn(source, arch, factor.as_ref(), &mut put)?;
        }
        Some("longrope") => {
            put("short_factor", Some(divisors(source, FACTORS[0])?.into()));
            put("long_factor", Some(divisors(source, FACTORS[1])?.into()));
            put("attention_factor", source.get(ATTENTION)?);
            put(ORIGINAL_KEY, original);
        }
        _ => {
            let what = format!("must be none, linear, yarn or longrope (got {})", describe(&stated));
            return Err(source.unsupported(&source.full(TYPE), what));
        }
    }
    out.values.insert("rope_scaling".to_owned(), Value::Object(parameters));
    Ok(())
}

const ORIGINAL_KEY: &str = "original_max_position_embeddings";

/// YaRN's own keys. `yarn_attn_factor` is the attention factor; `attn_factor` is on top of the paper's 0.1 ln(factor) + 1.
fn yarn(
    source: &Source<'_>,
    arch: &Arch,
    factor: Option<&Value>,
    put: &mut impl FnMut(&str, Option<Value>),
) -> Result<()> {
    const EXTRAPOLATION: &str = "rope.scaling.yarn_ext_factor";
    if let Some(other) = source.get(EXTRAPOLATION)?.filter(|value| value.as_f64() != Some(1.0)) {
        let what = format!("must be 1 (got {})", describe(&other));
        return Err(source.unsupported(&source.full(EXTRAPOLATION), what));
    }
    put("beta_fast", source.get("rope.scaling.yarn_beta_fast")?);
    put("beta_slow", source.get("rope.scaling.yarn_beta_slow")?);
    let number = |value: Option<Value>| value.and_then(|value| value.as_f64());
    let (whole, extra) =
        (number(source.get("rope.scaling.yarn_attn_factor")?), number(source.get(ATTENTION)?));
    if whole.is_some() || extra.is_some() {
        let factor = number(factor.cloned()).unwrap_or(1.0);
        let usual = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        put("attention_factor", Some((whole.unwrap_or(usual) * extra.unwrap_or(1.0)).into()));
    }
    if arch.rotary == Rotary::Mla
        && let Some(scale) = source.get("rope.scaling.yarn_log_multiplier")?.and_then(|scale| scale.as_f64())
    {
        // 0.1 mscale_all_dim; `mscale` is not in the file, and in all published models the same.
        put("mscale", Some((scale * 10.0).into()));
        put("mscale_all_dim", Some((scale * 10.0).into()));
    }
    if arch.name == "gpt-oss" {
        // Its config.json says so; the file does not.
        put("truncate", Some(false.into()));
    }
    Ok(())
}

/// Adds a key to `rope_scaling`.
pub(super) fn add(out: &mut Translated, key: &str, value: impl Into<Value>) {
    let parameters = out.values.entry("rope_scaling").or_insert_with(|| json!({"rope_type": "default"}));
    if let Some(parameters) = parameters.as_object_mut() {
        parameters.insert(key.to_owned(), value.into());
    }
}

/// A rope for layers without a window, which is as the file says, and one for the others, which is not scaled.
///
/// `rope.freq_base_swa` is the others' base, or else `usual`, or that of all; `rope.dimension_count_swa` says how much of
/// their heads, `head_dim` wide, is rotated.
pub(super) fn by_kind(
    source: &Source<'_>,
    out: &mut Translated,
    head_dim: Option<u64>,
    usual: Option<f64>,
) -> Result<()> {
    let mut full = match out.values.remove("rope_scaling") {
        Some(Value::Object(parameters)) => parameters,
        _ => Map::from_iter([("rope_type".to_owned(), "default".into())]),
    };
    let mut local = Map::from_iter([("rope_type".to_owned(), "default".into())]);
    let theta = out.values.remove("rope_theta");
    let local_theta = source.get("rope.freq_base_swa")?.or(usual.map(Value::from)).or(theta.clone());
    let share = out.values.remove("partial_rotary_factor");
    let local_dim = source.whole("rope.dimension_count_swa")?;
    let local_share = local_dim.zip(head_dim).map(|(dim, width)| share_of(dim, width).into());
    let local_share = local_share.or(share.clone());
    for (parameters, theta, share) in [(&mut full, theta, share), (&mut local, local_theta, local_share)] {
        parameters.extend(theta.map(|theta| ("rope_theta".to_owned(), theta)));
        parameters.extend(share.map(|share| ("partial_rotary_factor".to_owned(), share)));
    }
    out.set("rope_parameters", json!({"full_attention": full, "sliding_attention": local}));
    Ok(())
}

/// The share of a head of `width` that gives `dim` again when it is multiplied by it and rounded down.
pub(super) fn share_of(dim: u64, width: u64) -> f64 {
    ((dim as f64 + 0.25) / width as f64).min(1.0)
}

/// A tensor of divisors, all above zero.
pub(super) fn divisors(source: &Source<'_>, name: &str) -> Result<Vec<f64>> {
    let length = source.checkpoint.tensor(name).and_then(|tensor| tensor.shape.first().copied()).unwrap_or(0);
    let tensor = source.checkpoint.require(name, &[length])?;
    let mut values = vec![0.0; length];
    tensor.tensor_type.dequantize(tensor.bytes, &mut values);
    match values.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
        Some(value) => Err(source.bad(name, format!("must hold numbers above 0 (got {value})"))),
        None => Ok(values.into_iter().map(f64::from).collect()),
    }
}

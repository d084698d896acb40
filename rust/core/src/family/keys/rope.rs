//! The rotary keys of config.json, old style (`rope_theta` and `rope_scaling`) and new (`rope_parameters`).
//!
//! Meaning and defaults of the keys: transformers 5.23, `modeling_rope_utils.py`. Where transformers only warns,
//! or where its versions differ, the value is refused.

use super::metadata::Metadata;
use crate::config::{Rope, RopeLayout, RopeScaling};
use ropechat_platform::error::Result;

/// Lengths in tokens: beyond any model, and exact in f64.
pub(crate) const LENGTHS: std::ops::RangeInclusive<u64> = 1..=1 << 40;
/// Bases: published ones are between 1e4 and 1e11.
const THETAS: std::ops::RangeInclusive<f64> = 1e-3..=1e18;
/// Factors of every kind; zero and below divide by zero or flip signs.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e9;
/// Scaling types that [`scaling`] reads.
const TYPES: &str = "default, linear, dynamic, llama3, longrope, proportional and yarn";

/// Key of the share of a head that rotates.
const PARTIAL: &str = "partial_rotary_factor";

/// How much of a head is rotated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Partial {
    /// All of it. transformers ignores `partial_rotary_factor` for some rope types and obeys it for others here.
    Whole,
    /// As `Whole`; with the rope type proportional `partial_rotary_factor`, or this when the file does not say (gemma4).
    OfProportional(f64),
    /// `partial_rotary_factor`, or this when the file does not say.
    Usually(f64),
    /// As `Usually`, where the model's code splits the head itself, for any rope type (phi, stablelm).
    Cut(f64),
    /// This many leading dimensions.
    Dimensions(usize),
}

/// A family's facts about its rotary embedding; everything else is in the metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeFacts {
    /// `rope_theta` when the file has none.
    pub theta: f64,
    /// Width of a head.
    pub head_dim: usize,
    /// How much of it rotates.
    pub partial: Partial,
    /// Which two dimensions make a pair.
    pub layout: RopeLayout,
    /// `max_position_embeddings`.
    pub max_position_embeddings: usize,
    /// Keys of the rope object that the family reads itself.
    pub own_keys: &'static [&'static str],
}

/// Reads all rotary keys.
///
/// Errors: `Config` for values out of range or two places that differ, `Unsupported` for other scaling types and keys.
pub(crate) fn rope(metadata: &Metadata<'_>, facts: &RopeFacts) -> Result<Rope> {
    rope_of(metadata, rope_object(metadata)?.as_ref(), "rope_theta", facts)
}

/// As [`rope`], from an object that the family found, with the base under `theta_key` next to it ("": nowhere).
pub(crate) fn rope_of(
    metadata: &Metadata<'_>,
    parameters: Option<&Metadata<'_>>,
    theta_key: &str,
    facts: &RopeFacts,
) -> Result<Rope> {
    let inner_theta = match parameters {
        Some(parameters) => parameters.number_if_any("rope_theta", THETAS)?,
        None => None,
    };
    let outer_theta = metadata.number_if_any(theta_key, THETAS)?;
    if let (Some(inner), Some(outer)) = (inner_theta, outer_theta)
        && inner != outer
    {
        return Err(
            metadata.bad(theta_key, &format!("{outer} here and {inner} in rope_parameters; they must agree"))
        );
    }
    if outer_theta.is_none() && metadata.has(theta_key) {
        metadata.warn(theta_key, &format!("it is null; {} is used, the family's default", facts.theta));
    }
    let theta = inner_theta.or(outer_theta).unwrap_or(facts.theta);
    let proportional = match parameters {
        Some(parameters) => rope_type(parameters)? == "proportional",
        None => false,
    };
    let share = share(metadata, parameters, facts, proportional)?;
    let width = if proportional { 1.0 } else { share };
    let facts = &RopeFacts { head_dim: rotary_dim(metadata, facts, width)?, ..*facts };
    let scaling = match parameters {
        None => RopeScaling::None,
        Some(parameters) => {
            let scaling = if proportional {
                let factor = parameters.number_if_any("factor", FACTORS)?.unwrap_or(1.0);
                RopeScaling::Proportional { partial_rotary_factor: share, factor }
            } else {
                scaling(metadata, parameters, facts, theta)?
            };
            refuse_other_keys(parameters, &scaling, facts.own_keys)?;
            scaling
        }
    };
    Ok(Rope { theta, rotary_dim: facts.head_dim, layout: facts.layout, scaling })
}

/// `partial_rotary_factor`, next to the rope object or in it.
fn share(
    top: &Metadata<'_>,
    parameters: Option<&Metadata<'_>>,
    facts: &RopeFacts,
    proportional: bool,
) -> Result<f64> {
    // A proportional rope may rotate no pair at all; other types need at least one.
    let allowed = if proportional { 0.0..=1.0 } else { 1e-3..=1.0 };
    let outer = top.number_if_any(PARTIAL, allowed.clone())?;
    let inner = match parameters {
        Some(parameters) => parameters.number_if_any(PARTIAL, allowed)?,
        None => None,
    };
    let stated = inner.or(outer);
    match facts.partial {
        // With the number of dimensions, the share says the same.
        Partial::Dimensions(dim)
            if stated.is_some_and(|share| (share * facts.head_dim as f64).round() == dim as f64) =>
        {
            Ok(1.0)
        }
        Partial::Cut(default) if proportional && stated.unwrap_or(default) != 1.0 => Err(top.unsupported(
            PARTIAL,
            &format!(
                "must be 1.0 with the rope type proportional, which rotates whole heads (got {})",
                stated.unwrap_or(default)
            ),
        )),
        Partial::Usually(default) | Partial::Cut(default) => Ok(stated.unwrap_or(default)),
        Partial::OfProportional(default) if proportional => Ok(stated.unwrap_or(default)),
        Partial::Whole | Partial::OfProportional(_) | Partial::Dimensions(_) => match stated {
            Some(factor) if factor != 1.0 && !proportional => Err(top.unsupported(
                PARTIAL,
                &format!("must be 1.0, since this family rotates whole heads (got {factor})"),
            )),
            _ => Ok(stated.unwrap_or(1.0)),
        },
    }
}

/// Leading dimensions of a head that rotate: this share of them, rounded down.
fn rotary_dim(top: &Metadata<'_>, facts: &RopeFacts, share: f64) -> Result<usize> {
    let (dim, key) = match facts.partial {
        Partial::Dimensions(dim) => (dim, "rotary_dim"),
        Partial::Whole | Partial::OfProportional(_) => (facts.head_dim, "head_dim"),
        Partial::Usually(_) | Partial::Cut(_) => ((facts.head_dim as f64 * share) as usize, PARTIAL),
    };
    if dim == 0 || dim > facts.head_dim || !dim.is_multiple_of(2) {
        let what =
            format!("must be even and at most the head's width, since rotation takes pairs (got {dim})");
        return Err(top.bad(key, &what));
    }
    Ok(dim)
}

/// `rope_parameters` or `rope_scaling`. Some files keep both for older programs: then they must say the same.
pub(crate) fn rope_object<'a>(metadata: &Metadata<'a>) -> Result<Option<Metadata<'a>>> {
    let new = metadata.object_if_any("rope_parameters")?;
    let old = metadata.object_if_any("rope_scaling")?;
    if new.is_some() && old.is_some() && metadata.get("rope_parameters") != metadata.get("rope_scaling") {
        return Err(
            metadata.bad("rope_scaling", "must be the same as in rope_parameters, or be in only one of them")
        );
    }
    Ok(new.or(old))
}

/// `rope_type`, or `type` as older files write it.
fn rope_type<'a>(parameters: &Metadata<'a>) -> Result<&'a str> {
    let new = parameters.text_if_any("rope_type")?;
    let old = parameters.text_if_any("type")?;
    match (new, old) {
        (Some(new), Some(old)) if new != old => {
            Err(parameters.bad("rope_type", "must be the same as type, or only one of them must be given"))
        }
        _ => Ok(new.or(old).unwrap_or("default")),
    }
}

fn scaling(
    top: &Metadata<'_>,
    parameters: &Metadata<'_>,
    facts: &RopeFacts,
    theta: f64,
) -> Result<RopeScaling> {
    let factor = || parameters.number("factor", FACTORS);
    match rope_type(parameters)? {
        // mrope: a part of the pairs for each axis of a picture; a text has one position.
        "default" | "mrope" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "dynamic" if facts.head_dim <= 2 => Err(parameters.bad(
            "rope_type",
            "dynamic divides by the rotary width \
             minus 2, and that is zero here; a head of 4 dimensions or more is needed",
        )),
        // The trained length is max_position_embeddings, as in transformers: a head is trained up to there.
        "dynamic" => Ok(RopeScaling::Dynamic {
            // A family that reads `alpha` has a fixed base in its place.
            factor: match facts.own_keys.contains(&"alpha") && parameters.has("alpha") {
                true => 1.0,
                false => factor()?,
            },
            original_max_position_embeddings: facts.max_position_embeddings,
        }),
        "llama3" => llama3(top, parameters),
        // Early Phi-3 files call it su, or yarn with longrope's keys (`configuration_phi3.py`).
        "longrope" | "su" => longrope(top, parameters, facts),
        "yarn" if parameters.has("short_factor") => longrope(top, parameters, facts),
        "yarn" => yarn(top, parameters, facts, theta),
        other => Err(parameters.unsupported(
            "rope_type",
            &format!("must be one of {TYPES} (got \"{}\")", crate::checkpoint::escape_for_terminal(other)),
        )),
    }
}

/// Dubey et al. 2024 (Llama 3), and Meta's reference code. All four keys are needed.
fn llama3(top: &Metadata<'_>, parameters: &Metadata<'_>) -> Result<RopeScaling> {
    let low_freq_factor = parameters.number("low_freq_factor", FACTORS)?;
    let high_freq_factor = parameters.number("high_freq_factor", FACTORS)?;
    if high_freq_factor <= low_freq_factor {
        return Err(parameters.bad(
            "high_freq_factor",
            &format!("must be more than low_freq_factor, {low_freq_factor} (got {high_freq_factor})"),
        ));
    }
    let original = original_length(top, parameters)?;
    Ok(RopeScaling::Llama3 {
        factor: parameters.number("factor", FACTORS)?,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: match original {
            Some(length) => length,
            None => parameters.integer("original_max_position_embeddings", LENGTHS)?,
        },
    })
}

/// Ding et al. 2024, LongRoPE: a divisor per pair; the attention factor is transformers' for Phi-3.
fn longrope(top: &Metadata<'_>, parameters: &Metadata<'_>, facts: &RopeFacts) -> Result<RopeScaling> {
    let factors = |key: &str| -> Result<Vec<f64>> {
        let missing = || parameters.bad(key, "it is missing; a list of numbers is needed");
        let factors = parameters.numbers_if_any(key, FACTORS)?.ok_or_else(missing)?;
        if factors.len() != facts.head_dim / 2 {
            let what =
                format!("must have one number per pair, {} (got {})", facts.head_dim / 2, factors.len());
            return Err(parameters.bad(key, &what));
        }
        Ok(factors)
    };
    let (short_factor, long_factor) = (factors("short_factor")?, factors("long_factor")?);
    let stated = original_length(top, parameters)?;
    let original = stated.unwrap_or(facts.max_position_embeddings);
    if original < 2 {
        let what = format!("must be at least 2, since longrope divides by its logarithm (got {original})");
        return Err(parameters.bad("original_max_position_embeddings", &what));
    }
    let ratio = facts.max_position_embeddings as f64 / original as f64;
    let factor = parameters.number_if_any("factor", FACTORS)?.unwrap_or(ratio);
    let attention_factor = match parameters.number_if_any("attention_factor", 0.0..=1e6)? {
        Some(stated) => stated,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
    };
    let original_max_position_embeddings = original;
    let mut attention_factors = [attention_factor; 2];
    for (key, factor) in ["short_mscale", "long_mscale"].into_iter().zip(&mut attention_factors) {
        if facts.own_keys.contains(&key) {
            *factor = parameters.number(key, 0.0..=1e6)?;
        }
    }
    Ok(RopeScaling::LongRope {
        short_factor,
        long_factor,
        original_max_position_embeddings,
        attention_factors,
    })
}

/// Peng et al. 2023, YaRN: beta 32 and 1 and the attention factor 0.1 ln(factor) + 1 are the paper's (section 3.4).
fn yarn(top: &Metadata<'_>, parameters: &Metadata<'_>, facts: &RopeFacts, theta: f64) -> Result<RopeScaling> {
    if theta <= 1.0 {
        return Err(top.bad(
            "rope_theta",
            &format!("must be more than 1, since yarn divides by its logarithm (got {theta})"),
        ));
    }
    let stated = original_length(top, parameters)?;
    let original = stated.unwrap_or(facts.max_position_embeddings);
    let factor = match (parameters.number_if_any("factor", FACTORS)?, stated) {
        (Some(factor), _) => factor,
        (None, Some(original)) => facts.max_position_embeddings as f64 / original as f64,
        (None, None) => parameters.number("factor", FACTORS)?,
    };
    let beta_fast = parameters.number_if_any("beta_fast", FACTORS)?.unwrap_or(32.0);
    let beta_slow = parameters.number_if_any("beta_slow", FACTORS)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(parameters
            .bad("beta_fast", &format!("must be at least beta_slow, {beta_slow} (got {beta_fast})")));
    }
    let mscale = parameters.number_if_any("mscale", 0.0..=1e6)?.unwrap_or(0.0);
    let mscale_all_dim = parameters.number_if_any("mscale_all_dim", 0.0..=1e6)?.unwrap_or(0.0);
    let temperature = |scale: f64| {
        if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
    };
    let attention_factor = match parameters.number_if_any("attention_factor", 0.0..=1e6)? {
        Some(stated) => stated,
        // DeepSeek's pair; a zero counts as not set, and one without the other does nothing (transformers).
        None if mscale != 0.0 && mscale_all_dim != 0.0 => temperature(mscale) / temperature(mscale_all_dim),
        None => temperature(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: original,
        beta_fast,
        beta_slow,
        attention_factor,
        truncate: parameters.flag_or("truncate", true)?,
    })
}

/// `original_max_position_embeddings`, in the object or (as in Phi-3) next to it.
fn original_length(top: &Metadata<'_>, parameters: &Metadata<'_>) -> Result<Option<usize>> {
    const KEY: &str = "original_max_position_embeddings";
    let (outer, inner) = (top.integer_if_any(KEY, LENGTHS)?, parameters.integer_if_any(KEY, LENGTHS)?);
    match (outer, inner) {
        (Some(outer), Some(inner)) if outer != inner => {
            Err(parameters.bad(KEY, &format!("{inner} here and {outer} at the top; they must agree")))
        }
        _ => Ok(inner.or(outer)),
    }
}

/// Refuses keys of the object that its type does not use, unless they have no effect.
fn refuse_other_keys(parameters: &Metadata<'_>, scaling: &RopeScaling, own_keys: &[&str]) -> Result<()> {
    for (key, value) in parameters.unread() {
        let inert = match key {
            key if own_keys.contains(&key) => true,
            "mrope_section" | "mrope_interleaved" => true, // axes of pictures
            "factor" => value.as_f64() == Some(1.0),
            "original_max_position_embeddings" => match scaling {
                RopeScaling::Dynamic { original_max_position_embeddings: trained, .. } => {
                    value.as_u64() == Some(*trained as u64)
                }
                _ => true,
            },
            _ => false,
        };
        if !inert {
            let what = format!(
                "must be absent for this rope type, since it may change the angles (got {}); known types: {TYPES}",
                crate::checkpoint::json::describe(value)
            );
            return Err(parameters.unsupported(key, &what));
        }
    }
    Ok(())
}

/// A rope per kind of layer: nested in `rope_parameters` under `kinds` (null: those layers do not rotate), or one for all.
/// The keys next to the rope object are those of the first kind and `theta_keys` the base of each kind there.
pub(crate) fn ropes_by_kind<const N: usize>(
    metadata: &Metadata<'_>,
    kinds: [&str; N],
    theta_keys: [&str; N],
    facts: [RopeFacts; N],
) -> Result<[Option<Rope>; N]> {
    let parameters = rope_object(metadata)?;
    let nested = parameters.as_ref().filter(|parameters| kinds.iter().any(|kind| parameters.has(kind)));
    let mut ropes = [const { None }; N];
    for (index, (kind, facts)) in kinds.into_iter().zip(&facts).enumerate() {
        let own = match nested {
            // A kind that no layer is of may be left out.
            Some(nested) if nested.has(kind) && nested.get(kind).is_none() => continue,
            Some(nested) => nested.object_if_any(kind)?,
            None => rope_object(metadata)?,
        };
        let rope = rope_of(metadata, own.as_ref(), theta_keys[index], facts)?;
        if let (Some(_), Some(own), RopeScaling::Yarn { truncate: false, .. }) = (nested, &own, &rope.scaling)
        {
            let what =
                "must be true: transformers does not read it in the rope of a kind of layer (got false)";
            return Err(own.unsupported("truncate", what));
        }
        ropes[index] = Some(rope);
    }
    if let Some(nested) = nested {
        // Some writers leave it next to the kinds; each kind states its own.
        for key in ["rope_theta", "rope_type"] {
            nested.get(key);
        }
        refuse_unread(nested)?;
    }
    Ok(ropes)
}

/// Refuses files without rotary keys, for families in which their absence means a scaled rope.
pub(crate) fn require_rope(metadata: &Metadata<'_>) -> Result<()> {
    match rope_object(metadata)? {
        Some(_) => Ok(()),
        None => Err(metadata.bad("rope_parameters", "it is missing; the rotary keys are needed")),
    }
}

/// Requires `rope_parameters` where each of the `kinds` of layers has its own rope.
pub(crate) fn require_rope_of_kinds<const N: usize>(metadata: &Metadata<'_>, kinds: [&str; N]) -> Result<()> {
    let nested =
        rope_object(metadata)?.is_some_and(|parameters| kinds.iter().any(|kind| parameters.has(kind)));
    if nested {
        return Ok(());
    }
    let what = format!("must hold an object for each of {}", kinds.join(", "));
    Err(metadata.bad("rope_parameters", &what))
}

/// Refuses every key of an object whose keys are all read.
pub(crate) fn refuse_unread(parameters: &Metadata<'_>) -> Result<()> {
    match parameters.unread().next() {
        None => Ok(()),
        Some((key, _)) => {
            Err(parameters.unsupported(key, "it is not known here, and it may change the angles"))
        }
    }
}

//! From a model's metadata to its [`Config`]: one short file per family, and what they share.
//!
//! A family file states facts: its `model_type`s, the defaults of absent keys with their source, and which keys it
//! reads. Adding one: the file, its line in [`FAMILIES`], a golden case.

mod generation;
mod keys;
mod llama;
pub mod metadata;
mod rope;
mod tensors;

use std::cell::RefCell;

use serde_json::{Map, Value};

pub use generation::GenerationConfig;
use metadata::Metadata;
pub use tensors::{EMBEDDING, LM_HEAD, check_tensors, embedding_names, required_tensors};

use crate::checkpoint::json::{self, describe};
use crate::checkpoint::{Checkpoint, Folder, shown};
use crate::config::{Activation, Bias, Config};
use crate::error::{Error, Result};
use crate::quant::DType;

/// Name of the file that says what a model is.
const FILE: &str = "config.json";
/// Longest config read; published ones have a few kilobytes.
const LONGEST: u64 = 1 << 20;
/// Beyond any model's trained length: worth a warning, since memory is planned by it.
const LONG_CONTEXT: usize = 1 << 27;

/// One family of models.
pub struct Family {
    /// Values of `model_type` that it serves.
    pub model_types: &'static [&'static str],
    /// From metadata under Hugging Face's names to the config.
    pub config: fn(&Metadata<'_>) -> Result<Config>,
}

/// Every family there is.
pub static FAMILIES: &[&Family] = &[&llama::LLAMA];

/// What a model folder says of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    /// config.json.
    pub config: Config,
    /// generation_config.json.
    pub generation: GenerationConfig,
    /// What is odd but harmless, one line each, in the form of the errors.
    pub warnings: Vec<String>,
}

/// Reads config.json and generation_config.json of a model folder.
///
/// Errors: `Config` for values that no model can have, `Unsupported` for models and keys that the engine does not
/// compute, `NotFound`, `Io` and `UnsafePath` for files that cannot or may not be read. Each names the file and the key.
pub fn model_card(checkpoint: &Checkpoint) -> Result<ModelCard> {
    let folder = checkpoint.folder();
    let path = folder.join(FILE);
    let values = read_object(folder, FILE)?;
    let warnings = RefCell::default();
    let config = from_metadata(&Metadata::new(&path, &values, &warnings))?;
    let generation = generation::read(folder, config.vocab_size, &warnings)?;
    Ok(ModelCard { config, generation, warnings: warnings.into_inner() })
}

/// The config alone. Errors: as [`model_card`], also for a bad generation_config.json.
pub fn config(checkpoint: &Checkpoint) -> Result<Config> {
    Ok(model_card(checkpoint)?.config)
}

/// From metadata under Hugging Face's names to a [`Config`], through the family that `model_type` names.
pub fn from_metadata(metadata: &Metadata<'_>) -> Result<Config> {
    let model_type = metadata.text_if_any("model_type")?.ok_or_else(|| {
        metadata.bad("model_type", &format!("it is missing; one of {} is needed", model_types()))
    })?;
    let family =
        FAMILIES.iter().find(|family| family.model_types.contains(&model_type)).ok_or_else(|| {
            metadata.unsupported(
                "model_type",
                &format!("\"{}\"; supported: {}", shown(model_type), model_types()),
            )
        })?;
    refuse_quantization(metadata)?;
    let config = (family.config)(metadata)?;
    keys::refuse_unknown(metadata)?;
    if config.max_position_embeddings > LONG_CONTEXT {
        metadata.warn(
            "max_position_embeddings",
            &format!("{} is longer than any model was trained for", config.max_position_embeddings),
        );
    }
    Ok(config)
}

/// The names of all families' models, for messages.
fn model_types() -> String {
    FAMILIES.iter().flat_map(|family| family.model_types).copied().collect::<Vec<_>>().join(", ")
}

/// The top-level object of a JSON file.
fn read_object(folder: &Folder, name: &str) -> Result<Map<String, Value>> {
    let bad = |key: &str, what: String| Error::Config { path: folder.join(name), key: key.to_owned(), what };
    let text = folder.read_text(name, LONGEST).map_err(|error| match error {
        Error::Format { field, what, .. } => bad(&field, what),
        other => other,
    })?;
    match json::parse(&text) {
        Ok(Value::Object(values)) => Ok(values),
        Ok(other) => {
            Err(bad("JSON", format!("{}; an object is expected; download the file again", describe(&other))))
        }
        Err(fault) => {
            let allowed =
                "plain JSON is allowed (no NaN, no infinity); correct the file, or download it again";
            Err(bad(&fault.field, format!("{}; {allowed}", fault.what)))
        }
    }
}

/// Packed weights need kernels of their own; loading them as plain numbers would give noise.
fn refuse_quantization(metadata: &Metadata<'_>) -> Result<()> {
    for key in ["quantization_config", "compression_config", "quantization"] {
        let Some(value) = metadata.get(key) else {
            continue;
        };
        let method = value.get("quant_method").map_or_else(|| describe(value), describe);
        return Err(metadata.unsupported(
            key,
            &format!(
                "quant_method is {method}; F32, F16 and BF16 weights are supported; use an unquantized copy"
            ),
        ));
    }
    Ok(())
}

/// Head counts and width.
struct Heads {
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
}

/// `num_key_value_heads` defaults to `num_attention_heads`, `head_dim` to `hidden_size / num_attention_heads`.
fn heads(metadata: &Metadata<'_>, hidden_size: usize) -> Result<Heads> {
    let num_attention_heads = metadata.integer("num_attention_heads", 1..=1 << 16)?;
    if !hidden_size.is_multiple_of(num_attention_heads) {
        return Err(metadata.bad(
            "num_attention_heads",
            &format!("{num_attention_heads}; a divisor of hidden_size ({hidden_size}) is allowed"),
        ));
    }
    let num_key_value_heads =
        metadata.integer_if_any("num_key_value_heads", 1..=1 << 16)?.unwrap_or(num_attention_heads);
    if !num_attention_heads.is_multiple_of(num_key_value_heads) {
        return Err(metadata.bad(
            "num_key_value_heads",
            &format!(
                "{num_key_value_heads}; a divisor of num_attention_heads ({num_attention_heads}) is allowed"
            ),
        ));
    }
    let stated = metadata.integer_if_any("head_dim", 1..=1 << 13)?;
    let head_dim = stated.unwrap_or(hidden_size / num_attention_heads);
    if !head_dim.is_multiple_of(2) {
        return Err(metadata
            .bad("head_dim", &format!("{head_dim}; an even width is allowed, since rotation takes pairs")));
    }
    if num_attention_heads * head_dim > 1 << 22 {
        return Err(metadata.bad(
            "head_dim",
            &format!("{head_dim} x {num_attention_heads} heads; at most {} is allowed", 1 << 22),
        ));
    }
    Ok(Heads { num_attention_heads, num_key_value_heads, head_dim })
}

/// A normalization's epsilon. Zero is legal and divides by zero on a row of zeros.
fn eps(metadata: &Metadata<'_>, key: &str, default: f64) -> Result<f32> {
    let eps = metadata.number_or(key, 0.0..=1.0, default)?;
    if eps == 0.0 {
        metadata.warn(key, "it is 0; a row of zeros then gives NaN");
    }
    Ok(eps as f32)
}

fn activation(metadata: &Metadata<'_>, key: &str, default: Activation) -> Result<Activation> {
    match metadata.text_if_any(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some(other) => Err(metadata.unsupported(key, &format!("\"{}\"; silu is supported", shown(other)))),
    }
}

fn bias(metadata: &Metadata<'_>, key: &str) -> Result<Bias> {
    Ok(if metadata.flag_or(key, false)? { Bias::Added } else { Bias::None })
}

/// What the checkpoint says of its own type; the tensors' own types decide.
fn torch_dtype(metadata: &Metadata<'_>) -> Option<DType> {
    let name = metadata.get("dtype").or(metadata.get("torch_dtype"))?.as_str()?;
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Some(DType::F32),
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        _ => None,
    }
}

/// For families without windows: a window that a sequence could outgrow is refused.
fn refuse_window(metadata: &Metadata<'_>, max_position_embeddings: usize) -> Result<()> {
    let window = metadata.integer_if_any("sliding_window", 1..=1 << 40)?;
    let in_use = metadata.flag_or("use_sliding_window", true)?;
    match window {
        Some(window) if in_use && window < max_position_embeddings => Err(metadata.unsupported(
            "sliding_window",
            &format!("{window}; this family is computed without a window; null is supported"),
        )),
        _ => Ok(()),
    }
}

/// For families that rotate whole heads. transformers ignores the key here for one rope type and obeys it for others.
fn refuse_partial_rotation(metadata: &Metadata<'_>) -> Result<()> {
    match metadata.number_if_any("partial_rotary_factor", 1e-3..=1.0)? {
        Some(factor) if factor != 1.0 => Err(metadata.unsupported(
            "partial_rotary_factor",
            &format!("{factor}; this family is computed with whole heads rotated; 1.0 is supported"),
        )),
        _ => Ok(()),
    }
}

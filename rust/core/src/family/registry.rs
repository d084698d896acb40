//! The family of a model, by its `model_type`.

use super::composite::COMPOSITE;
use super::keys::base::Family;
use super::keys::metadata::Metadata;
use super::keys::{known, quantization, refused};
use super::models::FAMILIES;
use crate::checkpoint::escape_for_terminal;
use crate::checkpoint::quantized::Scheme;
use crate::config::Config;
use ropechat_platform::error::Result;

/// Longer than any model's trained length: gives a warning, since memory is planned by it.
const LONG_CONTEXT: usize = 1 << 27;

/// All families.
pub fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied().chain([&COMPOSITE])
}

/// From metadata under Hugging Face's names to a [`Config`], through the family that `model_type` names.
pub fn from_metadata(metadata: Metadata<'_>) -> Result<Config> {
    let model_type = metadata.text_if_any("model_type")?.ok_or_else(|| {
        metadata.bad("model_type", &format!("it is missing; one of {} is needed", model_types()))
    })?;
    let Some(family) = families().find(|family| family.model_types.contains(&model_type)) else {
        let supported = format!("supported: {}", model_types());
        let what = match refused::reason(model_type) {
            Some(reason) => format!("\"{}\"; {reason}; {supported}", escape_for_terminal(model_type)),
            None => format!("\"{}\"; {supported}", escape_for_terminal(model_type)),
        };
        return Err(metadata.unsupported("model_type", &what));
    };
    let metadata = &metadata.with_aliases(family.aliases);
    let quantization = quantization::scheme(metadata)?;
    let mut config = (family.config)(metadata)?;
    // A file with parts for pictures or sound may state it next to the text part's keys.
    if quantization != Scheme::Plain {
        config.quantization = quantization;
    }
    quantization::check_model(metadata, &mut config)?;
    known::refuse_unknown(metadata)?;
    if config.max_position_embeddings > LONG_CONTEXT {
        metadata.warn(
            "max_position_embeddings",
            &format!("{} is longer than any model was trained for", config.max_position_embeddings),
        );
    }
    Ok(config)
}

/// The names of some models, for messages.
fn model_types() -> String {
    const NAMED: usize = 8;
    let mut all = families().flat_map(|family| family.model_types).copied();
    let named = all.by_ref().take(NAMED).collect::<Vec<_>>().join(", ");
    format!("{named} and {} more, which `ropechat models families` lists", all.count())
}

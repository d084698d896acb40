//! From GGUF's metadata to a [`Config`]: translated here, once, into the names of config.json, so that the family files
//! do not depend on the file format.
//!
//! ```text
//! <arch>.* --keys.rs, rope.rs--> keys of config.json --<family>.rs--> Config --stored.rs--> what the file's tensors need
//! ```
//!
//! `archs/` has an entry per architecture, `own.rs` and `hybrid.rs` (recurrent layers) the keys that need more than another
//! name. The two formats differ in keys and tensor names; q and k rows, which some architectures store for the rotation of
//! neighbours (they are picked in the family's order as they are packed, so that the logits have the bits of the safetensors
//! model's); norms that hold the weight itself where Hugging Face's hold it minus one; decay rates in place of their
//! logarithms; experts in one tensor; what a layer learns that is in the metadata; and facts that llama.cpp keeps in its code
//! instead of the file. Source of them all: llama.cpp, `conversion/`, `gguf-py/gguf/constants.py`,
//! `gguf-py/gguf/tensor_mapping.py`, `src/llama-model.cpp` and `src/models/`.

mod arch;
mod archs;
mod hybrid;
mod keys;
mod mla;
mod own;
mod rope;
mod source;
mod stored;
mod translated;

use std::cell::RefCell;

use self::source::Source;
use self::translated::Translated;
use super::card::ModelCard;
use super::keys::generation::{self, GenerationConfig};
use super::keys::metadata::Metadata;
use super::registry::from_metadata;
use super::tensors;
use crate::checkpoint::{Checkpoint, gguf};
use ropechat_platform::error::Result;

/// The architectures of GGUF files that are computed, and the model types whose files have each.
pub fn architectures() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    archs::names()
}

/// Reads the config and the sampling defaults of a `.gguf` file.
///
/// Errors: `Config` for values that no model can have, `Unsupported` for architectures and keys that the engine does not
/// compute. Each names the file and its key.
pub(super) fn model_card(checkpoint: &Checkpoint, metadata: gguf::Metadata<'_>) -> Result<ModelCard> {
    let source = Source::new(checkpoint, metadata)?;
    let arch = archs::find(&source)?;
    let translated = keys::translate(&source, arch)?;
    let warnings = RefCell::new(source.not_utf8());
    let metadata = Metadata::new(checkpoint.path(), &translated.values, &warnings);
    let config = from_metadata(metadata.with_origins(&translated.origins))?;
    tensors::check_experts(checkpoint, &config)?;
    let config = stored::as_stored(config, arch, &source)?;
    source.refuse_unread()?;
    let generation = generation(&source, config.vocab_size, &warnings)?;
    Ok(ModelCard { config, generation, warnings: warnings.into_inner() })
}

/// The maker's defaults for sampling, which newer files hold.
fn generation(
    source: &Source<'_>,
    vocab_size: usize,
    warnings: &RefCell<Vec<String>>,
) -> Result<GenerationConfig> {
    let mut defaults = Translated::default();
    for (key, own) in [
        ("temperature", "general.sampling.temp"),
        ("top_k", "general.sampling.top_k"),
        ("top_p", "general.sampling.top_p"),
        ("min_p", "general.sampling.min_p"),
        ("repetition_penalty", "general.sampling.penalty_repeat"),
        ("xtc_probability", "general.sampling.xtc_probability"),
        ("xtc_threshold", "general.sampling.xtc_threshold"),
    ] {
        defaults.origins.insert(key.to_owned(), own.to_owned());
        if let Some(value) = source.of_file(own)? {
            defaults.values.insert(key.to_owned(), value);
        }
    }
    let metadata = Metadata::new(source.path(), &defaults.values, warnings).with_origins(&defaults.origins);
    generation::of_metadata(&metadata, vocab_size)
}

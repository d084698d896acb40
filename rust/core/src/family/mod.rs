//! From a model's metadata to its [`Config`]: one short file per family in `models/`, and what they share.
//!
//! A family file states facts: its `model_type`s, the defaults of absent keys with their source, and which keys it
//! reads. CONTRIBUTING.md, "How to add a family", has the steps.

mod card;
mod composite;
mod gguf;
pub mod keys;
mod models;
mod registry;
pub(crate) mod tensors;

pub use card::{ModelCard, of_file as config_of_file};
pub use gguf::architectures as gguf_architectures;
pub use keys::base::Family;
pub use keys::generation::GenerationConfig;
pub use keys::metadata;
pub use registry::{families, from_metadata};
pub use tensors::{
    check_tensors, embedding_names, layer, mtp_layer, num_parameters, outside_layers, required_tensors,
};

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use ropechat_platform::error::Result;

/// Reads config.json and generation_config.json of a model folder, or the metadata of a `.gguf` file.
///
/// Errors: `Config` for values that no model can have, `Unsupported` for models and keys that the engine does not
/// compute, `NotFound`, `Io` and `UnsafePath` for files that cannot or may not be read. Each names the file and the key.
pub fn model_card(checkpoint: &Checkpoint) -> Result<ModelCard> {
    match checkpoint.gguf() {
        Some(metadata) => gguf::model_card(checkpoint, metadata),
        None => card::of_folder(checkpoint),
    }
}

/// The config alone. Errors: as [`model_card`], also for a bad generation_config.json.
pub fn config(checkpoint: &Checkpoint) -> Result<Config> {
    Ok(model_card(checkpoint)?.config)
}

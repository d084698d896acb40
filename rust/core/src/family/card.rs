//! The facts in the files of a model folder: config.json and generation_config.json.

use std::cell::RefCell;
use std::path::Path;

use super::keys::generation::{self, GenerationConfig};
use super::keys::metadata::{Metadata, read_object};
use super::{registry, tensors};
use crate::checkpoint::{Checkpoint, Folder};
use crate::config::Config;
use ropechat_platform::error::Result;

/// The file that describes a model.
const FILE: &str = "config.json";

/// The facts in a model folder.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    /// config.json.
    pub config: Config,
    /// generation_config.json.
    pub generation: GenerationConfig,
    /// Warnings: unusual but harmless facts, one line each, in the form of the errors.
    pub warnings: Vec<String>,
}

/// Reads both files of the checkpoint's folder.
pub(super) fn of_folder(checkpoint: &Checkpoint) -> Result<ModelCard> {
    let folder = checkpoint.folder();
    let path = folder.join(FILE);
    let values = read_object(folder, FILE)?;
    let warnings = RefCell::default();
    let config = registry::from_metadata(Metadata::new(&path, &values, &warnings))?;
    tensors::check_experts(checkpoint, &config)?;
    let config = tensors::as_in(checkpoint, config);
    let generation = generation::read(folder, config.vocab_size, &warnings)?;
    Ok(ModelCard { config, generation, warnings: warnings.into_inner() })
}

/// The config of a config.json, or of the one in a folder. No weights are needed.
///
/// Errors: as [`super::model_card`].
pub fn of_file(path: &Path) -> Result<Config> {
    let (folder, name) = match path.file_name().and_then(|name| name.to_str()) {
        Some(name) if !path.is_dir() => (path.parent().unwrap_or(Path::new("")), name),
        _ => (path, FILE),
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder }; // of a bare file name
    let folder = Folder::open(folder)?;
    let values = read_object(&folder, name)?;
    registry::from_metadata(Metadata::new(&folder.join(name), &values, &RefCell::default()))
}

//! `generation_config.json`: the maker's defaults for sampling.

use std::cell::RefCell;

use super::metadata::{Metadata, read_object};
use crate::checkpoint::Folder;
use ropechat_platform::error::Result;

/// Name of the file; it is optional.
const FILE: &str = "generation_config.json";

/// The keys that ropechat's sampler knows. None: the maker does not say.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct GenerationConfig {
    pub bos_token_id: Option<u32>,
    /// `eos_token_id`, as a list.
    pub eos_token_id: Vec<u32>,
    /// `do_sample`: false asks for the most probable token.
    pub do_sample: Option<bool>,
    pub temperature: Option<f64>,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
}

/// Reads the file; a missing file gives no defaults.
///
/// Other keys are ignored: they control transformers' `generate`, not what the model computes.
///
/// Errors: `Config` for text that is not JSON and for values out of range; `UnsafePath`, `Io` for files that cannot be read.
pub(crate) fn read(
    folder: &Folder,
    vocab_size: usize,
    warnings: &RefCell<Vec<String>>,
) -> Result<GenerationConfig> {
    if !folder.has(FILE) {
        return Ok(GenerationConfig::default());
    }
    let path = folder.join(FILE);
    let values = read_object(folder, FILE)?;
    of_metadata(&Metadata::new(&path, &values, warnings), vocab_size)
}

/// The same from metadata under this file's key names.
pub(crate) fn of_metadata(metadata: &Metadata<'_>, vocab_size: usize) -> Result<GenerationConfig> {
    Ok(GenerationConfig {
        bos_token_id: metadata.token_ids("bos_token_id", vocab_size)?.first().copied(),
        eos_token_id: metadata.token_ids("eos_token_id", vocab_size)?,
        do_sample: metadata.has("do_sample").then(|| metadata.flag_or("do_sample", false)).transpose()?,
        temperature: metadata.number_if_any("temperature", 0.0..=100.0)?,
        top_k: metadata.integer_if_any("top_k", 0..=1 << 26)?,
        top_p: metadata.number_if_any("top_p", 0.0..=1.0)?,
        min_p: metadata.number_if_any("min_p", 0.0..=1.0)?,
        repetition_penalty: metadata.number_if_any("repetition_penalty", 1e-6..=1e6)?,
    })
}

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
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub top_n_sigma: Option<f64>,
    pub xtc_probability: Option<f64>,
    pub xtc_threshold: Option<f64>,
}

impl GenerationConfig {
    /// The numbers that are given, by name.
    pub fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("temperature", self.temperature),
            ("top_k", self.top_k.map(|k| k as f64)),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
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

/// The generation config in metadata that uses the key names of `generation_config.json`.
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
        presence_penalty: metadata.number_if_any("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: metadata.number_if_any("frequency_penalty", -2.0..=2.0)?,
        top_n_sigma: metadata.number_if_any("top_n_sigma", 0.0..=100.0)?,
        xtc_probability: metadata.number_if_any("xtc_probability", 0.0..=1.0)?,
        xtc_threshold: metadata.number_if_any("xtc_threshold", 0.0..=1.0)?,
    })
}

//! From a model's metadata to its [`Config`]: one short file per family, and what they share.
//!
//! A family file states facts: its `model_type`s, the defaults of absent keys with their source, and which keys it
//! reads. CONTRIBUTING.md, "How to add a family", has the steps.

mod base;
mod cohere;
mod deepseek;
mod dtransformer;
mod exaone4;
mod falcon;
mod gemma;
mod gemma3;
mod generation;
mod gguf;
mod glm;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod keys;
mod latent;
mod layout;
mod llama;
mod merged;
pub mod metadata;
mod mistral;
mod mixtral;
mod mixture;
mod nemotron;
mod olmo;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod refused;
mod rope;
mod rows;
mod slots;
mod smollm3;
mod stablelm;
mod starcoder2;
mod tensors;
mod windows;

use std::cell::RefCell;

use serde_json::{Map, Value};

pub use generation::GenerationConfig;
pub use layout::{layer_slots, model_slots};
use metadata::Metadata;
pub use rows::{Rows, Source};
pub use slots::{
    ExpertSlots, Join, LatentSlots, LayerSlots, MatrixSlot, MlpSlots, ModelSlots, NormSlot, ProjectionSlots,
};
pub use tensors::{check_tensors, embedding_names, required_tensors};

use crate::checkpoint::json::{self, describe};
use crate::checkpoint::{Checkpoint, Folder, shown};
use crate::config::Config;
use crate::error::{Error, Result};

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
    /// Its own names of common keys: (usual key, the family's).
    pub aliases: &'static [(&'static str, &'static str)],
    /// From metadata under Hugging Face's names to the config.
    pub config: fn(&Metadata<'_>) -> Result<Config>,
}

/// Every family there is.
pub static FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &mistral::MISTRAL,
    &mistral::MINISTRAL3,
    &mixtral::MIXTRAL,
    &qwen2::QWEN2,
    &qwen2_moe::QWEN2_MOE,
    &qwen3::QWEN3,
    &qwen3::QWEN3_MOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma3::GEMMA3_TEXT,
    &gemma3::GEMMA3,
    &phi::PHI,
    &phi3::PHI3,
    &gpt_neox::GPT_NEOX,
    &gptj::GPTJ,
    &stablelm::STABLELM,
    &olmo::OLMO,
    &olmo::OLMO2,
    &smollm3::SMOLLM3,
    &granite::GRANITE,
    &cohere::COHERE,
    &cohere::COHERE2,
    &starcoder2::STARCODER2,
    &exaone4::EXAONE4,
    &falcon::FALCON,
    &glm::GLM,
    &glm::GLM4,
    &nemotron::NEMOTRON,
    &gpt_oss::GPT_OSS,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &gpt2::GPT2,
    &gpt_neo::GPT_NEO,
    &dtransformer::DTRANSFORMER_ROPE,
];

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

/// Reads config.json and generation_config.json of a model folder, or the metadata of a `.gguf` file.
///
/// Errors: `Config` for values that no model can have, `Unsupported` for models and keys that the engine does not
/// compute, `NotFound`, `Io` and `UnsafePath` for files that cannot or may not be read. Each names the file and the key.
pub fn model_card(checkpoint: &Checkpoint) -> Result<ModelCard> {
    if let Some(metadata) = checkpoint.gguf() {
        return gguf::model_card(checkpoint, metadata);
    }
    let folder = checkpoint.folder();
    let path = folder.join(FILE);
    let values = read_object(folder, FILE)?;
    let warnings = RefCell::default();
    let mut config = from_metadata(Metadata::new(&path, &values, &warnings))?;
    config.names = tensors::resolved(config.names, checkpoint);
    let generation = generation::read(folder, config.vocab_size, &warnings)?;
    Ok(ModelCard { config, generation, warnings: warnings.into_inner() })
}

/// The config alone. Errors: as [`model_card`], also for a bad generation_config.json.
pub fn config(checkpoint: &Checkpoint) -> Result<Config> {
    Ok(model_card(checkpoint)?.config)
}

/// From metadata under Hugging Face's names to a [`Config`], through the family that `model_type` names.
pub fn from_metadata(metadata: Metadata<'_>) -> Result<Config> {
    let model_type = metadata.text_if_any("model_type")?.ok_or_else(|| {
        metadata.bad("model_type", &format!("it is missing; one of {} is needed", model_types()))
    })?;
    let Some(family) = FAMILIES.iter().find(|family| family.model_types.contains(&model_type)) else {
        let supported = format!("supported: {}", model_types());
        let what = match refused::reason(model_type) {
            Some(reason) => format!("\"{}\"; {reason}; {supported}", shown(model_type)),
            None => format!("\"{}\"; {supported}", shown(model_type)),
        };
        return Err(metadata.unsupported("model_type", &what));
    };
    let metadata = &metadata.with_aliases(family.aliases);
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

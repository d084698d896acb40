//! The facts of a model's config, as Python values.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropechat_core::config::Config;
use ropechat_core::family::GenerationConfig;
use ropechat_core::kv_cache::{BLOCK, KvLayout};
use ropechat_kernels::quant::PackedType;

/// The maker's defaults for the sampler, by name.
pub(super) fn generation_facts<'py>(
    py: Python<'py>,
    generation: &GenerationConfig,
) -> PyResult<Bound<'py, PyDict>> {
    let facts = PyDict::new(py);
    generation.numbers().try_for_each(|(name, value)| facts.set_item(name, value))?;
    generation.do_sample.map_or(Ok(()), |wanted| facts.set_item("do_sample", wanted))?;
    Ok(facts)
}

/// The facts of `Engine.facts` that the config says.
pub(super) fn config_facts<'py>(py: Python<'py>, config: &Config) -> PyResult<Bound<'py, PyDict>> {
    let facts = PyDict::new(py);
    facts.set_item("model_type", &config.model_type)?;
    facts.set_item("vocab_size", config.vocab_size)?;
    facts.set_item("hidden_size", config.hidden_size)?;
    facts.set_item("intermediate_size", config.intermediate_size)?;
    facts.set_item("num_hidden_layers", config.layers.len())?;
    facts.set_item("num_attention_heads", config.num_attention_heads)?;
    facts.set_item("num_key_value_heads", config.num_key_value_heads)?;
    facts.set_item("head_dim", config.head_dim)?;
    facts.set_item("widest_head_dim", config.widest_head_dim())?;
    facts.set_item("kv_token_bytes", KvLayout::new(config, PackedType::F16).block_bytes() / BLOCK)?;
    facts.set_item("max_position_embeddings", config.max_position_embeddings)?;
    facts.set_item("usable_length", config.usable_length())?;
    facts.set_item("bos_token_id", config.bos_token_id)?;
    facts.set_item("eos_token_id", &config.eos_token_id)?;
    Ok(facts)
}

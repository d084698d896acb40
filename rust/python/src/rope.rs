//! What a model's config says about positions, as Python values.

use std::path::Path;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::call::call_engine;
use super::facts::config_facts;
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::config::{
    Attention, Config, EmbeddingPosition, LayerRope, Mask, QueryScaling, Rope, RopeLayout, RopeScaling, Sinks,
};
use ropechat_core::family;

/// What the config of a folder, a config.json or a `.gguf` file says about positions. No weights are read.
#[pyfunction]
#[pyo3(signature = (path, *, length = 0))]
pub(super) fn rope_spec<'py>(py: Python<'py>, path: &str, length: usize) -> PyResult<Bound<'py, PyDict>> {
    let path = Path::new(path);
    let is_json = path.is_dir() || path.extension().is_some_and(|suffix| suffix == "json");
    let config = call_engine(py, || {
        let config =
            if is_json { family::config_of_file(path) } else { family::config(&Checkpoint::open(path)?) };
        Ok(config?)
    })?;
    spec(py, &config, length)
}

/// The facts about the rope of a config, for sequences of `length` tokens (dynamic NTK and longrope depend on it).
pub(super) fn spec<'py>(py: Python<'py>, config: &Config, length: usize) -> PyResult<Bound<'py, PyDict>> {
    let found = config_facts(py, config)?;
    found.set_item("attention_multiplier", f64::from(config.attention_multiplier))?;
    found.set_item("attn_logit_softcapping", config.attn_logit_softcapping.map(f64::from))?;
    let is_mla = matches!(config.attention, Attention::Mla { .. });
    found.set_item("attention", if is_mla { "mla" } else { "heads" })?;
    found.set_item("sinks", config.sinks != Sinks::None)?;
    let (position, first) = match config.position {
        EmbeddingPosition::None => ("none", 0),
        EmbeddingPosition::Learned => ("learned", 0),
        EmbeddingPosition::Rotated { first_position } => ("rotated", first_position),
    };
    found.set_item("position", position)?;
    found.set_item("first_position", first)?;
    let query_scaling = match config.query_scaling {
        QueryScaling::None => None,
        QueryScaling::Llama4 { beta, original_max_position_embeddings } => {
            Some((beta, original_max_position_embeddings))
        }
        // These scale layers that do not rotate: no part of a rotation's picture.
        QueryScaling::WhereUnrotated { .. }
        | QueryScaling::PowerWhereUnrotated { .. }
        | QueryScaling::LogWhereUnwindowed { .. } => None,
    };
    found.set_item("query_scaling", query_scaling)?;
    let layers = PyList::empty(py);
    for layer in &config.layers {
        let row = PyDict::new(py);
        row.set_item(
            "rope",
            match layer.rope {
                LayerRope::None => None,
                LayerRope::Rotary(index) => Some(index),
            },
        )?;
        row.set_item(
            "window",
            match layer.mask {
                Mask::Causal => None,
                Mask::Sliding(window) | Mask::Chunked(window) => Some(window),
            },
        )?;
        row.set_item("attention_scale", f64::from(layer.attention_scale))?;
        layers.append(row)?;
    }
    found.set_item("layers", layers)?;
    let variant = config.rope_variant(length);
    let ropes = PyList::empty(py);
    for (rope, frequencies) in config.ropes.iter().zip(config.frequencies(variant)) {
        let row = PyDict::new(py);
        row.set_item("theta", rope.theta)?;
        row.set_item("rotary_dim", rope.rotary_dim)?;
        row.set_item("interleaved", rope.layout == RopeLayout::Interleaved)?;
        row.set_item("inv_freq", frequencies.inv_freq())?;
        row.set_item("attention_factor", frequencies.attention_factor())?;
        scaling(rope, &row)?;
        ropes.append(row)?;
    }
    found.set_item("ropes", ropes)?;
    Ok(found)
}

/// `rope_type` and the keys that the type reads, under their names in config.json.
fn scaling(rope: &Rope, row: &Bound<'_, PyDict>) -> PyResult<()> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let name = match &rope.scaling {
        RopeScaling::None => "default",
        RopeScaling::Linear { factor } => {
            row.set_item("factor", factor)?;
            "linear"
        }
        RopeScaling::Dynamic { factor, original_max_position_embeddings } => {
            row.set_item("factor", factor)?;
            row.set_item(ORIGINAL, original_max_position_embeddings)?;
            "dynamic"
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            row.set_item("factor", factor)?;
            row.set_item("low_freq_factor", low_freq_factor)?;
            row.set_item("high_freq_factor", high_freq_factor)?;
            row.set_item(ORIGINAL, original_max_position_embeddings)?;
            "llama3"
        }
        RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, .. } => {
            row.set_item("factor", factor)?;
            row.set_item("beta_fast", beta_fast)?;
            row.set_item("beta_slow", beta_slow)?;
            row.set_item(ORIGINAL, original_max_position_embeddings)?;
            "yarn"
        }
        RopeScaling::Proportional { partial_rotary_factor, factor } => {
            row.set_item("factor", factor)?;
            row.set_item("partial_rotary_factor", partial_rotary_factor)?;
            "proportional"
        }
        RopeScaling::Divided { .. } => "divided",
        RopeScaling::LongRope { original_max_position_embeddings, .. } => {
            row.set_item(ORIGINAL, original_max_position_embeddings)?;
            "longrope"
        }
    };
    row.set_item("rope_type", name)
}

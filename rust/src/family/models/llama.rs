//! Llama 1, 2 and 3, and the many models with the same architecture (SmolLM, TinyLlama, Yi, DeepSeek-Coder ...).
//!
//! Touvron et al. 2023 (LLaMA, Llama 2), Dubey et al. 2024 (Llama 3). Defaults of absent keys: transformers 5.23,
//! `configuration_llama.py`. Sizes have no default here: a file that does not state them is broken.

use crate::family::keys::base::{Defaults, Family, base};

pub(crate) static LLAMA: Family =
    Family { model_types: &["llama"], aliases: &[], config: |metadata| base(metadata, &Defaults::LLAMA) };

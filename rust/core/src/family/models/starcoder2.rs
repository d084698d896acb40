//! StarCoder 2: LayerNorm, a plain MLP, biases everywhere, a window in every layer.
//!
//! Lozhkov et al. 2024. Defaults of absent keys: transformers 5.23, `configuration_starcoder2.py`.

use crate::config::{Activation, Config, LmHead, MlpShape, Names, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static STARCODER2: Family = Family { model_types: &["starcoder2"], aliases: &[], config };

const DEFAULTS: Defaults = Defaults {
    names: Names {
        gate_up_proj: Names::plain_up(tensor!("mlp.c_fc")),
        down_proj: tensor!("mlp.c_proj"),
        ..Names::LLAMA
    },
    num_key_value_heads: KvHeads::Usually(2),
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 4096,
    norm: NormKey::Layer("norm_epsilon", 1e-5),
    activation: Activation::GeluTanh,
    lm_head: LmHead::Tied,
    attention_bias: BiasKey::Key("use_bias", true),
    attention_out_bias: BiasKey::Key("use_bias", true),
    mlp_bias: BiasKey::Key("use_bias", true),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    for (key, word) in [("norm_type", "layer_norm"), ("mlp_type", "default")] {
        if metadata.text_if_any(key)?.is_some_and(|stated| stated != word) {
            return Err(metadata.unsupported(key, &format!("must be \"{word}\"")));
        }
    }
    let config = Config { mlp: MlpShape::Plain, ..base(metadata, &DEFAULTS)? };
    let window = window(metadata, None)?;
    with_windows(metadata, config, window, |_| true)
}

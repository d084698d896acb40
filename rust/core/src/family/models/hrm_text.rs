//! HRM-Text: two stacks of layers that run in cycles over the same weights; norms without weights, gated attention.
//!
//! Sapient Intelligence 2026 (HRM-Text). Defaults of absent keys: transformers 5.23, `configuration_hrm_text.py`. A prompt is
//! read causally, as transformers does without `token_type_ids`.

use crate::config::{
    AttentionGate, Config, GateUp, GateWidth, LayerSpec, Mechanisms, Names, NormWeight, Qkv, tensor,
};
use crate::family::keys::base::{Defaults, Family, HeadDim, base};
use crate::family::keys::metadata::Metadata;
use crate::mechanisms::cycles::config::Cycles;
use ropechat_platform::error::Result;

pub(crate) static HRM_TEXT: Family = Family { model_types: &["hrm_text"], aliases: &[], config };

/// Most layers that one pass may run.
const MOST_LAYERS: usize = 4096;

const NAMES: Names = Names {
    qkv: Qkv::GateStacked(tensor!("attn.gqkv_proj")),
    o_proj: tensor!("attn.o_proj"),
    gate_up_proj: GateUp::Stacked(tensor!("mlp.gate_up_proj")),
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults { names: NAMES, head_dim: HeadDim::Usually(128), ..Defaults::LLAMA };
    for key in ["attention_bias", "mlp_bias"] {
        if metadata.flag_or(key, false)? {
            return Err(metadata.unsupported(key, "must be false, as in every published model (got true)"));
        }
    }
    let config = base(metadata, &defaults)?;
    let stated = |key: &str| metadata.integer_if_any(key, 1..=MOST_LAYERS as u64);
    let h_cycles = stated("H_cycles")?.unwrap_or(2);
    let l_cycles = metadata.integer_if_any("L_cycles", 0..=MOST_LAYERS as u64)?.unwrap_or(3);
    let per_stack = stated("num_layers_per_stack")?;
    let cycles = Cycles { num_layers_per_stack: per_stack.unwrap_or(config.layers.len()), l_cycles };
    let count = cycles.layers_per_cycle() * h_cycles;
    if count > MOST_LAYERS {
        let what = format!("must make at most {MOST_LAYERS} layers in all cycles (got {count})");
        return Err(metadata.bad("H_cycles", &what));
    }
    if per_stack.is_some() && count != config.layers.len() {
        let what = format!(
            "must be num_layers_per_stack * H_cycles * (L_cycles + 1), {count} (got {})",
            config.layers.len()
        );
        return Err(metadata.bad("num_hidden_layers", &what));
    }
    let spread = metadata.number_or("initializer_range", 1e-9..=1.0, 0.02)?;
    let scale = metadata.number_if_any("embedding_scale", 1e-6..=1e9)?.unwrap_or(1.0 / spread);
    metadata.get("L_bp_cycles"); // where gradients flow
    if metadata.flag_or("prefix_lm", true)? {
        metadata.warn("prefix_lm", "it is true; prompts are read causally here, like answers");
    }
    let spec = config.layers[0];
    let layer = |index: usize| {
        let first = cycles.first(index);
        LayerSpec { repeats: (first != index).then_some(first), ..spec }
    };
    Ok(Config {
        layers: (0..count).map(layer).collect(),
        mechanisms: Mechanisms { cycles: Some(cycles), ..config.mechanisms },
        embedding_multiplier: scale as f32,
        norm_weight: NormWeight::Absent,
        attention_gate: AttentionGate::Sigmoid(GateWidth::PerChannel),
        ..config
    })
}

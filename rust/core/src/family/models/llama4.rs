//! Llama 4, text: chunked attention where it rotates, all positions and none of them rotated in every fourth layer, norms
//! without weights on q and k, experts whose weight is a factor of their input.
//!
//! Meta 2025 (Llama 4). Defaults of absent keys: transformers 5.23, `configuration_llama4.py`.

use crate::checkpoint::escape_for_terminal;
use crate::config::{
    Bias, Config, ExpertInput, GateUp, LayerMlp, LayerRope, Mask, Moe, MoeNames, Names, Normalization,
    QkNorm, QkNormPlace, QueryScaling, RopeLayout, Scoring, Shared, SharedExpert, Stored, Tensor, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::experts_per_token;
use crate::family::keys::windows::layer_numbers;
use ropechat_platform::error::Result;

pub(crate) static LLAMA4_TEXT: Family = Family { model_types: &["llama4_text"], aliases: &[], config };

const NAMES: Names = Names {
    bases: &["model.", "language_model.model."],
    gate_up_proj: GateUp::Separate {
        gate: tensor!("feed_forward.gate_proj"),
        up: tensor!("feed_forward.up_proj"),
    },
    down_proj: tensor!("feed_forward.down_proj"),
    moe: MoeNames::Fused {
        router: tensor!("feed_forward.router"),
        gate_up: Tensor { weight: "feed_forward.experts.gate_up_proj", bias: "" },
        down: Tensor { weight: "feed_forward.experts.down_proj", bias: "" },
        stored: Stored::InOut,
        shared: Shared {
            gate_up: GateUp::Separate {
                gate: tensor!("feed_forward.shared_expert.gate_proj"),
                up: tensor!("feed_forward.shared_expert.up_proj"),
            },
            down: tensor!("feed_forward.shared_expert.down_proj"),
        },
    },
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let number = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 40)?.unwrap_or(default))
    };
    let dense_width = number("intermediate_size_mlp", 16_384)?;
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 4096 * 32,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { theta: 500_000.0, layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    let width = config.intermediate_size;
    config.intermediate_size = dense_width;
    let count = config.layers.len();

    let interval = number("no_rope_layer_interval", 4)?;
    // The list says 1 where a layer rotates.
    let rotates = layer_numbers(metadata, "no_rope_layers")?;
    if !rotates.is_empty() && rotates.len() != count {
        let what = format!("must have one entry per layer, {count} (got {})", rotates.len());
        return Err(metadata.bad("no_rope_layers", &what));
    }
    let chunk = metadata.integer_if_any("attention_chunk_size", 1..=1 << 40)?;
    let chunk = if metadata.has("attention_chunk_size") { chunk } else { Some(8192) };
    let types = metadata.texts_if_any("layer_types")?;
    if types.as_ref().is_some_and(|types| types.len() != count) {
        return Err(metadata.bad("layer_types", &format!("must have one entry per layer, {count}")));
    }
    let step = number("interleave_moe_layer_step", 1)?;
    let mixtures = layer_numbers(metadata, "moe_layers")?;
    let listed = metadata.get("moe_layers").is_some();
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let rotated = rotates.get(index).map_or(!(index + 1).is_multiple_of(interval), |&flag| flag != 0);
        layer.rope = if rotated { LayerRope::Rotary(0) } else { LayerRope::None };
        let chunked = match types.as_ref().map(|types| types[index]) {
            None => rotated,
            Some("chunked_attention") => true,
            Some("full_attention") => false,
            Some(other) => {
                let what = format!(
                    "must be full_attention or chunked_attention (got \"{}\")",
                    escape_for_terminal(other)
                );
                return Err(metadata.unsupported("layer_types", &what));
            }
        };
        layer.mask = match chunk {
            Some(chunk) if chunked => Mask::Chunked(chunk),
            _ => Mask::Causal,
        };
        let mixture = if listed { mixtures.contains(&index) } else { (index + 1).is_multiple_of(step) };
        layer.mlp = if mixture { LayerMlp::Moe } else { LayerMlp::Dense };
    }

    let num_experts = number("num_local_experts", 16)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(1))?;
    let moe = Moe {
        scoring: Scoring::Sigmoid,
        normalization: Normalization::None,
        input: ExpertInput::Weighted,
        shared: SharedExpert::Added { intermediate_size: width },
        ..Moe::plain(num_experts, per_token, width)
    };
    // Published files write a number for true.
    let tuned = metadata
        .get("attn_temperature_tuning")
        .is_none_or(|value| value.as_bool().unwrap_or_else(|| value.as_f64() != Some(0.0)));
    let attn_scale = metadata.number_or("attn_scale", 0.0..=1e6, 0.1)?;
    let floor_scale = metadata.number_or("floor_scale", 1.0..=1e12, 8192.0)?;
    let normed = metadata.flag_or("use_qk_norm", true)?;
    metadata.get("for_llm_compressor"); // of quantization tools
    Ok(Config {
        moe: Some(moe),
        qk_norm: if normed { QkNorm::Unweighted } else { QkNorm::None },
        qk_norm_place: QkNormPlace::AfterRotation,
        query_scaling: match tuned {
            true => QueryScaling::WhereUnrotated { attn_scale, floor_scale },
            false => QueryScaling::None,
        },
        ..config
    })
}

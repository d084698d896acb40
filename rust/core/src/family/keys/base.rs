//! The keys that nearly all families have, read once: a family states its defaults and changes what differs.

use super::metadata::Metadata;
use super::rope::{LENGTHS, Partial, RopeFacts, rope};
use super::windows::refuse_window;
use crate::checkpoint::escape_for_terminal;
use crate::checkpoint::quantized::Scheme;
use crate::config::{
    Activation, Attention, AttentionGate, Bias, BranchFactors, Config, EmbeddingNorm, EmbeddingPosition,
    HeadOutputs, HeadTransform, LayerMlp, LayerRope, LayerScalar, LayerSpec, LmHead, Mask, Mechanisms, Mixer,
    MlpShape, Names, Norm, NormPlacement, NormWeight, QkNorm, QkNormPlace, QueryScaling, Residual,
    ResidualFactors, Rope, RopeLayout, Sinks, SubNorms, ValueNorm, Values,
};
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::Result;

/// One family of models.
pub struct Family {
    /// Values of `model_type` that it serves.
    pub model_types: &'static [&'static str],
    /// Its own names of common keys: (usual key, the family's).
    pub aliases: &'static [(&'static str, &'static str)],
    /// From metadata under Hugging Face's names to the config.
    pub config: fn(&Metadata<'_>) -> Result<Config>,
}

/// A family's defaults for the common keys. Sizes have no default: a file without them is broken.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub names: Names,
    /// Sizes that published files leave to the class; None: the file must say.
    pub vocab_size: Option<usize>,
    pub num_attention_heads: Option<usize>,
    pub num_hidden_layers: Option<usize>,
    pub intermediate_size: Option<usize>,
    pub num_key_value_heads: KvHeads,
    pub head_dim: HeadDim,
    pub max_position_embeddings: usize,
    pub norm: NormKey,
    pub activation_key: &'static str,
    pub activation: Activation,
    pub lm_head: LmHead,
    pub attention_bias: BiasKey,
    pub attention_out_bias: BiasKey,
    pub mlp_bias: BiasKey,
    /// None: positions do not enter by rotation.
    pub rope: Option<RopeDefaults>,
    pub windows: WindowKeys,
}

/// `num_key_value_heads` of files without the key.
#[derive(Clone, Copy)]
pub(crate) enum KvHeads {
    /// As many as query heads.
    AsQueries,
    /// This many; `null` still means as many as query heads.
    Usually(usize),
    /// This many, regardless of the file.
    Always(usize),
}

/// `head_dim` of files without the key.
#[derive(Clone, Copy)]
pub(crate) enum HeadDim {
    /// hidden_size / num_attention_heads, which must divide even when `head_dim` is stated.
    Quotient,
    /// hidden_size / num_attention_heads; a stated width may differ.
    FreeQuotient,
    /// This width.
    Usually(usize),
    /// This width, regardless of the file.
    Always(usize),
}

/// The norm's epsilon: its key and what it is when absent.
#[derive(Clone, Copy)]
pub(crate) enum NormKey {
    Rms(&'static str, f64),
    Layer(&'static str, f64),
}

/// Where a family's bias flag comes from.
#[derive(Clone, Copy)]
pub(crate) enum BiasKey {
    /// A key and its default.
    Key(&'static str, bool),
    /// Fixed by the family; an `attention_bias` that contradicts it is refused.
    Fixed(Bias),
    /// Fixed by the family; there is no key.
    Absent(Bias),
}

/// The rotary embedding of files without its keys.
#[derive(Clone, Copy)]
pub(crate) struct RopeDefaults {
    pub theta: f64,
    pub partial: Partial,
    pub layout: RopeLayout,
    /// Keys of the rope object that the family reads itself.
    pub own_keys: &'static [&'static str],
}

/// How the window keys are treated.
#[derive(Clone, Copy)]
pub(crate) enum WindowKeys {
    /// The family has no windows: a window that a sequence could outgrow is refused.
    Refused,
    /// The family reads them.
    OfFamily,
}

impl RopeDefaults {
    /// Whole heads, half-split pairs, base 10000.
    pub const WHOLE: RopeDefaults =
        RopeDefaults { theta: 10_000.0, partial: Partial::Whole, layout: RopeLayout::Neox, own_keys: &[] };
}

impl Defaults {
    /// Llama's defaults (`configuration_llama.py`).
    pub const LLAMA: Defaults = Defaults {
        names: Names::LLAMA,
        vocab_size: None,
        num_attention_heads: None,
        num_hidden_layers: None,
        intermediate_size: None,
        num_key_value_heads: KvHeads::AsQueries,
        head_dim: HeadDim::Quotient,
        max_position_embeddings: 2048,
        norm: NormKey::Rms("rms_norm_eps", 1e-6),
        activation_key: "hidden_act",
        activation: Activation::Silu,
        lm_head: LmHead::Own,
        attention_bias: BiasKey::Key("attention_bias", false),
        attention_out_bias: BiasKey::Key("attention_bias", false),
        mlp_bias: BiasKey::Key("mlp_bias", false),
        rope: Some(RopeDefaults::WHOLE),
        windows: WindowKeys::Refused,
    };
}

/// A decoder like Llama from the common keys, with a family's defaults.
pub(crate) fn base(metadata: &Metadata<'_>, defaults: &Defaults) -> Result<Config> {
    let vocab_size = size(metadata, "vocab_size", 1 << 26, defaults.vocab_size)?;
    let hidden_size = metadata.integer("hidden_size", 1..=1 << 20)?;
    let heads = heads(metadata, hidden_size, defaults)?;
    let max_position_embeddings = metadata
        .integer_if_any("max_position_embeddings", LENGTHS)?
        .unwrap_or(defaults.max_position_embeddings);
    if matches!(defaults.windows, WindowKeys::Refused) {
        refuse_window(metadata, max_position_embeddings)?;
    }
    let ropes = ropes(metadata, defaults, heads.head_dim, max_position_embeddings)?;
    let rope = if ropes.is_empty() { LayerRope::None } else { LayerRope::Rotary(0) };
    let layer = LayerSpec {
        mask: Mask::Causal,
        attention_scale: 1.0,
        rope,
        mixer: Mixer::Attention,
        mlp: LayerMlp::Dense,
        heads: None,
        attention: None,
        intermediate_size: None,
        shares_kv_of: None,
        repeats: None,
        values: Values::Own,
        residual_factors: [ResidualFactors::ONE; 2],
        activation: None,
        gate_cutoff: None,
    };
    let tied = metadata.flag_or("tie_word_embeddings", defaults.lm_head == LmHead::Tied)?;
    Ok(Config {
        model_type: metadata.text_if_any("model_type")?.unwrap_or_default().to_owned(),
        names: defaults.names,
        vocab_size,
        stored_vocab_size: None,
        hidden_size,
        intermediate_size: size(metadata, "intermediate_size", 1 << 24, defaults.intermediate_size)?,
        num_attention_heads: heads.num_attention_heads,
        num_key_value_heads: heads.num_key_value_heads,
        head_dim: heads.head_dim,
        v_head_dim: heads.head_dim,
        max_position_embeddings,
        layers: vec![layer; size(metadata, "num_hidden_layers", 4096, defaults.num_hidden_layers)?],
        mtp: None,
        mechanisms: Mechanisms::default(),
        position: EmbeddingPosition::None,
        embedding_multiplier: 1.0,
        embedding_norm: EmbeddingNorm::None,
        norm: norm(metadata, defaults.norm)?,
        final_norm: None,
        norm_weight: NormWeight::Plain,
        norm_bias: match defaults.norm {
            NormKey::Rms(..) => Bias::None,
            NormKey::Layer(..) => Bias::Added,
        },
        norm_placement: NormPlacement::Before,
        residual: Residual::Sequential,
        residual_multiplier: 1.0,
        attention: Attention::Heads,
        relative_scores: None,
        attention_multiplier: 1.0 / (heads.head_dim as f32).sqrt(),
        query_scaling: QueryScaling::None,
        qk_norm: QkNorm::None,
        qk_norm_place: QkNormPlace::BeforeRotation,
        value_norm: ValueNorm::None,
        value_scale: 1.0,
        attention_gate: AttentionGate::None,
        sub_norms: SubNorms::None,
        per_layer_embedding: None,
        layer_scalar: LayerScalar::None,
        clip_qkv: None,
        attn_logit_softcapping: None,
        sinks: Sinks::None,
        attention_bias: bias(metadata, defaults.attention_bias)?,
        attention_out_bias: bias(metadata, defaults.attention_out_bias)?,
        mlp: MlpShape::Gated,
        activation: activation(metadata, defaults.activation_key, defaults.activation)?,
        mlp_bias: bias(metadata, defaults.mlp_bias)?,
        recurrent: None,
        recurrent_factors: BranchFactors::ONE,
        attention_input_factor: 1.0,
        mlp_input_factor: 1.0,
        moe: None,
        ropes,
        head_outputs: HeadOutputs::Own,
        head_transform: HeadTransform::None,
        lm_head: if tied { LmHead::Tied } else { LmHead::Own },
        lm_head_bias: Bias::None,
        logit_scale: 1.0,
        final_logit_softcapping: None,
        bos_token_id: metadata.token_ids("bos_token_id", vocab_size)?.first().copied(),
        eos_token_id: metadata.token_ids("eos_token_id", vocab_size)?,
        torch_dtype: torch_dtype(metadata),
        quantization: Scheme::Plain,
    })
}

/// The family's one rotary embedding, if it has any.
fn ropes(
    metadata: &Metadata<'_>,
    defaults: &Defaults,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<Vec<Rope>> {
    let Some(facts) = &defaults.rope else { return Ok(Vec::new()) };
    let RopeDefaults { theta, partial, layout, own_keys } = *facts;
    let facts = RopeFacts { theta, head_dim, partial, layout, max_position_embeddings, own_keys };
    Ok(vec![rope(metadata, &facts)?])
}

/// A size that the file must state, unless the family has a default.
fn size(metadata: &Metadata<'_>, key: &str, most: u64, default: Option<usize>) -> Result<usize> {
    // A list (gemma3n: a width per layer) is the family's, which then has a default.
    let listed = default.is_some() && metadata.get(key).is_some_and(serde_json::Value::is_array);
    match (default, if listed { None } else { metadata.integer_if_any(key, 1..=most)? }) {
        (_, Some(stated)) => Ok(stated),
        (Some(default), None) => Ok(default),
        (None, None) => metadata.integer(key, 1..=most),
    }
}

/// Head counts and width.
struct Heads {
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
}

fn heads(metadata: &Metadata<'_>, hidden_size: usize, defaults: &Defaults) -> Result<Heads> {
    let num_attention_heads = size(metadata, "num_attention_heads", 1 << 16, defaults.num_attention_heads)?;
    let stated = metadata.integer_if_any("head_dim", 1..=1 << 13)?;
    let quotient = hidden_size / num_attention_heads;
    let head_dim = match (stated, defaults.head_dim) {
        (Some(stated), HeadDim::FreeQuotient | HeadDim::Usually(_)) => stated,
        (None, HeadDim::Usually(usual)) | (_, HeadDim::Always(usual)) => usual,
        _ if !hidden_size.is_multiple_of(num_attention_heads) => {
            return Err(metadata.bad(
                "num_attention_heads",
                &format!("must be a divisor of hidden_size, {hidden_size} (got {num_attention_heads})"),
            ));
        }
        (stated, _) => stated.unwrap_or(quotient),
    };
    let usual = match defaults.num_key_value_heads {
        KvHeads::Usually(usual) if !metadata.has("num_key_value_heads") => usual,
        _ => num_attention_heads,
    };
    let stated = metadata.integer_if_any("num_key_value_heads", 1..=1 << 16)?;
    let num_key_value_heads = match defaults.num_key_value_heads {
        KvHeads::Always(always) => always,
        _ => stated.unwrap_or(usual),
    };
    if !num_attention_heads.is_multiple_of(num_key_value_heads) {
        return Err(metadata.bad(
            "num_key_value_heads",
            &format!(
                "must be a divisor of num_attention_heads, {num_attention_heads} (got {num_key_value_heads})"
            ),
        ));
    }
    if num_attention_heads * head_dim > 1 << 22 {
        return Err(metadata.bad(
            "head_dim",
            &format!("must be at most {} in all heads (got {head_dim} x {num_attention_heads})", 1 << 22),
        ));
    }
    Ok(Heads { num_attention_heads, num_key_value_heads, head_dim })
}

/// A norm's epsilon. Zero is legal and divides by zero on a row of zeros.
fn norm(metadata: &Metadata<'_>, norm: NormKey) -> Result<Norm> {
    let (NormKey::Rms(key, default) | NormKey::Layer(key, default)) = norm;
    let eps = metadata.number_or(key, 0.0..=1.0, default)?;
    if eps == 0.0 {
        metadata.warn(key, "it is 0; a row of zeros then gives NaN");
    }
    let eps = eps as f32;
    Ok(match norm {
        NormKey::Rms(..) => Norm::RmsNorm { eps },
        NormKey::Layer(..) => Norm::LayerNorm { eps },
    })
}

/// An activation by its name.
pub(crate) fn activation(metadata: &Metadata<'_>, key: &str, default: Activation) -> Result<Activation> {
    match metadata.text_if_any(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu" | "gelu_python") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_fast" | "gelu_accurate" | "gelu_pytorch_tanh" | "gelu_python_tanh") => {
            Ok(Activation::GeluTanh)
        }
        Some("relu") => Ok(Activation::Relu),
        Some("relu2") => Ok(Activation::Relu2),
        Some("xielu") => Ok(Activation::Xielu { alpha_p: 0.0, alpha_n: 0.0 }), // the weights say
        Some(other) => Err(metadata.unsupported(
            key,
            &format!(
                "must be silu, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2 or xielu (got \"{}\")",
                escape_for_terminal(other)
            ),
        )),
    }
}

/// A bias flag; where the family fixes the bias, a contradicting flag is refused.
pub(crate) fn bias(metadata: &Metadata<'_>, key: BiasKey) -> Result<Bias> {
    Ok(match key {
        BiasKey::Key(key, default) => {
            if metadata.flag_or(key, default)? {
                Bias::Added
            } else {
                Bias::None
            }
        }
        BiasKey::Absent(fixed) => fixed,
        BiasKey::Fixed(fixed) => {
            let stated = metadata.flag_or("attention_bias", fixed == Bias::Added)?;
            if stated != (fixed == Bias::Added) {
                let what = format!("{stated}; this family is computed with {} only", !stated);
                return Err(metadata.unsupported("attention_bias", &what));
            }
            fixed
        }
    })
}

/// The type that the checkpoint states; the tensors' own types decide.
fn torch_dtype(metadata: &Metadata<'_>) -> Option<PackedType> {
    let name = metadata.get("dtype").or(metadata.get("torch_dtype"))?.as_str()?;
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Some(PackedType::F32),
        "float16" => Some(PackedType::F16),
        "bfloat16" => Some(PackedType::BF16),
        _ => None,
    }
}

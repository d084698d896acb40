//! What a model is, in the field's words: enums that are resolved at load, so that no later code asks for the family.
//!
//! Field names are the keys of Hugging Face's `config.json`. A family file (`family/`) turns metadata into a [`Config`].

mod facts;
mod frequencies;
mod mechanisms;
mod moe;
mod mtp;
mod recurrent;
mod rope;
mod structure;
mod tensor_names;

pub use facts::{Facts, MixerFacts};
pub use frequencies::{RopeFrequencies, RopeVariant};
pub use mechanisms::Mechanisms;
pub use moe::{ClosedGroups, ExpertGroups, ExpertInput, Moe, Normalization, Router, Scoring, SharedExpert};
pub use mtp::{Mtp, MtpNames};
pub use recurrent::{BranchFactors, GatedOutput, KeyHeads, LinearAttention, LinearRule, Recurrent, Window};
pub use rope::{Rope, RopeLayout, RopeScaling};
pub use ropechat_kernels::kernel::Activation;
pub use structure::{
    Attention, AttentionGate, Bias, EmbeddingNorm, EmbeddingPosition, GateWidth, HeadOutputs, HeadTransform,
    Heads, LayerMlp, LayerRope, LayerScalar, LayerSpec, LmHead, Mask, Mixer, MlpShape, Norm, NormPlacement,
    NormWeight, PerLayerEmbedding, QkNorm, QkNormPlace, QueryLatent, QueryScaling, RelativeScores, Residual,
    ResidualFactors, Sinks, SubNorms, ValueNorm, Values,
};
pub(crate) use tensor_names::tensor;
pub use tensor_names::{
    GateUp, HeadRows, InProj, KvB, MlaNames, MoeNames, Names, PerLayerNames, Qkv, RecurrentForm,
    RecurrentNames, Shared, Stored, Tensor,
};

use crate::checkpoint::quantized::Scheme;
use ropechat_kernels::quant::PackedType;

/// Everything that the forward pass needs besides the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `model_type` of config.json.
    pub model_type: String,
    /// What the tensors are called.
    pub names: Names,
    /// Rows of the embedding that are used; length of a logit row.
    pub vocab_size: usize,
    /// Rows of the stored embedding and projection to logits, where the last ones are padding (`unpadded_vocab_size`; inkling).
    pub stored_vocab_size: Option<usize>,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the dense MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head's query and key.
    pub head_dim: usize,
    /// Width of one head's value; `head_dim` except for latent attention.
    pub v_head_dim: usize,
    /// Trained length in tokens.
    pub max_position_embeddings: usize,
    /// One per layer, in order.
    pub layers: Vec<LayerSpec>,
    /// The layer for multi-token prediction, where the model has one.
    pub mtp: Option<Mtp>,
    /// Mechanisms of a few families.
    pub mechanisms: Mechanisms,
    /// What a token's position does to its embedding.
    pub position: EmbeddingPosition,
    /// Factor of the embedding (gemma: sqrt(hidden_size); granite).
    pub embedding_multiplier: f32,
    /// Norm of the embedding.
    pub embedding_norm: EmbeddingNorm,
    /// Normalization of rows, of the residual stream and of q and k alike.
    pub norm: Norm,
    /// The norm after the last layer, where it is another one (jetmoe).
    pub final_norm: Option<Norm>,
    /// What the norms' weight tensors contain.
    pub norm_weight: NormWeight,
    /// Biases of the norms.
    pub norm_bias: Bias,
    /// Where a layer has its norms.
    pub norm_placement: NormPlacement,
    /// How attention and MLP are added to the residual stream.
    pub residual: Residual,
    /// Factor of both results before they are added (granite).
    pub residual_multiplier: f32,
    /// How queries, keys and values are projected; a layer's `attention` comes first.
    pub attention: Attention,
    /// Learned scores by distance.
    pub relative_scores: Option<RelativeScores>,
    /// Factor of the attention scores: 1 / sqrt(head_dim), or `attention_multiplier`, `query_pre_attn_scalar`; a layer's
    /// `attention_scale` is another factor.
    pub attention_multiplier: f32,
    /// What a query's position does to its scores.
    pub query_scaling: QueryScaling,
    /// Norm of q and k.
    pub qk_norm: QkNorm,
    /// Whether that is before rotation.
    pub qk_norm_place: QkNormPlace,
    /// Norm of the values.
    pub value_norm: ValueNorm,
    /// Factor of the values (`attention_value_scale`; mimo_v2_flash).
    pub value_scale: f32,
    /// A gate of attention's output.
    pub attention_gate: AttentionGate,
    /// Norms inside attention and MLP.
    pub sub_norms: SubNorms,
    /// A second embedding, of which each layer has a part.
    pub per_layer_embedding: Option<PerLayerEmbedding>,
    /// A learned factor of each layer's output.
    pub layer_scalar: LayerScalar,
    /// `clip_qkv`: q, k and v are cut to +- this (olmo).
    pub clip_qkv: Option<f32>,
    /// `attn_logit_softcapping`: scores become cap * tanh(score / cap) (gemma2).
    pub attn_logit_softcapping: Option<f32>,
    /// Attention sinks.
    pub sinks: Sinks,
    /// Biases of q, k and v projections.
    pub attention_bias: Bias,
    /// Bias of the o projection.
    pub attention_out_bias: Bias,
    /// The MLP's shape.
    pub mlp: MlpShape,
    /// The MLP's activation.
    pub activation: Activation,
    /// Biases of gate, up and down projections.
    pub mlp_bias: Bias,
    /// The recurrent mixer of the layers that have one.
    pub recurrent: Option<Recurrent>,
    /// Factors of that mixer's input and output.
    pub recurrent_factors: BranchFactors,
    /// Factor of attention's normed input (falcon_h1).
    pub attention_input_factor: f32,
    /// Factor of the MLP's normed input (falcon_h1).
    pub mlp_input_factor: f32,
    /// The mixture of experts of the layers that have one.
    pub moe: Option<Moe>,
    /// Rotary position embeddings; each layer's spec names one of them.
    pub ropes: Vec<Rope>,
    /// How the outputs of the heads are combined.
    pub head_outputs: HeadOutputs,
    /// What happens to a row before the projection to logits.
    pub head_transform: HeadTransform,
    /// Where the projection to logits comes from.
    pub lm_head: LmHead,
    /// Bias of the projection to logits (gptj, phi).
    pub lm_head_bias: Bias,
    /// Factor of the logits (`logit_scale`, 1 / `logits_scaling`).
    pub logit_scale: f32,
    /// `final_logit_softcapping`: logits become cap * tanh(logit / cap) (gemma2).
    pub final_logit_softcapping: Option<f32>,
    /// `bos_token_id`, when the config states one.
    pub bos_token_id: Option<u32>,
    /// `eos_token_id` as a list (old configs have one number).
    pub eos_token_id: Vec<u32>,
    /// `torch_dtype` / `dtype`: the type that config.json states for the weights.
    pub torch_dtype: Option<PackedType>,
    /// `quantization_config`: how matrices are stored that are not plain numbers.
    pub quantization: Scheme,
}

impl Config {
    /// This model with a layer for multi-token prediction like its last one.
    #[must_use]
    pub fn with_mtp(self, names: MtpNames) -> Self {
        let like = |layer: &&LayerSpec| layer.mixer.has_attention();
        let mtp = self.layers.iter().rev().find(like).map(|&layer| Mtp { layer, names });
        Self { mtp, ..self }
    }

    /// The model that the layer for multi-token prediction makes alone, with this one's embedding and projection to logits.
    pub fn of_mtp(&self) -> Option<Self> {
        let Mtp { layer, names: MtpNames { base, norm, .. } } = self.mtp?;
        let names = match base {
            Some(base) => Names { base, layers: "layers", norm, ..self.names },
            None => Names { first_layer: self.layers.len(), norm, ..self.names },
        };
        Some(Self {
            names,
            layers: vec![layer],
            mtp: None,
            position: EmbeddingPosition::None,
            embedding_norm: EmbeddingNorm::None,
            layer_scalar: LayerScalar::None,
            recurrent: None,
            ..self.clone()
        })
    }

    /// A layer's place among those with a recurrent state.
    pub fn state_layer(&self, layer: usize) -> usize {
        self.layers[..layer].iter().filter(|layer| layer.mixer.is_recurrent()).count()
    }

    /// The longest sequence in tokens: the trained length, or the length that dynamic NTK extends it to.
    pub fn usable_length(&self) -> usize {
        match self.ropes.first().map(|rope| &rope.scaling) {
            Some(RopeScaling::Dynamic { factor, .. }) => {
                (self.max_position_embeddings as f64 * factor) as usize
            }
            _ => self.max_position_embeddings,
        }
    }

    /// The number of positions that can be computed; only a learned table limits it.
    pub fn position_limit(&self) -> usize {
        match self.position {
            EmbeddingPosition::Learned => self.max_position_embeddings,
            EmbeddingPosition::None | EmbeddingPosition::Rotated { .. } => usize::MAX,
        }
    }

    /// The rope variant of a sequence of `sequence_len` tokens (all tokens of the sequence, not only those of this call).
    pub fn rope_variant(&self, sequence_len: usize) -> RopeVariant {
        self.ropes.iter().map(|rope| rope.variant(sequence_len)).max().unwrap_or_default()
    }

    /// The frequencies of each rope in a variant.
    pub fn frequencies(&self, variant: RopeVariant) -> Vec<RopeFrequencies> {
        self.ropes.iter().map(|rope| rope.frequencies(variant)).collect()
    }

    /// Numbers and widths of a layer's heads.
    pub fn heads(&self, layer: &LayerSpec) -> Heads {
        layer.heads.unwrap_or(Heads {
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            v_head_dim: self.v_head_dim,
        })
    }

    /// Numbers and widths of the heads that a layer's attention computes with. Latent attention reads one key for all heads:
    /// its rotated part, then the latent, which is the value too.
    pub fn cached_heads(&self, layer: &LayerSpec) -> Heads {
        let heads = self.heads(layer);
        match self.attention_of(layer) {
            Attention::Mla { kv_lora_rank, qk_rope_head_dim, .. } => Heads {
                num_key_value_heads: 1,
                head_dim: qk_rope_head_dim + kv_lora_rank,
                v_head_dim: kv_lora_rank,
                ..heads
            },
            _ => heads,
        }
    }

    /// Whether a layer's values are the last columns of its keys, so that the cache holds keys only.
    pub fn values_in_keys(&self, layer: &LayerSpec) -> bool {
        layer.values == Values::OfKeys || matches!(self.attention_of(layer), Attention::Mla { .. })
    }

    /// How a layer projects queries, keys and values.
    pub fn attention_of(&self, layer: &LayerSpec) -> Attention {
        layer.attention.unwrap_or(self.attention)
    }

    /// Numbers and widths of all layers' heads.
    pub fn all_heads(&self) -> impl Iterator<Item = Heads> {
        self.layers.iter().map(|layer| self.heads(layer))
    }

    /// Query heads of the layer that has most.
    pub fn most_attention_heads(&self) -> usize {
        self.all_heads().map(|heads| heads.num_attention_heads).max().unwrap_or_default()
    }

    /// Width of the widest query as it is multiplied with keys.
    pub fn widest_head_dim(&self) -> usize {
        let heads = self.layers.iter().map(|layer| self.cached_heads(layer));
        heads.map(|heads| heads.head_dim).max().unwrap_or_default()
    }
}

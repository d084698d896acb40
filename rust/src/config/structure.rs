//! The structural choices of a decoder: one enum per choice, named in the field's words.

/// What differs from layer to layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// Which earlier positions a position attends to.
    pub mask: Mask,
    /// Another factor of the scores: 1, or 1 / (layer + 1) (`scale_attn_by_inverse_layer_idx`; gpt2).
    pub attention_scale: f32,
    /// How q and k are rotated by their position.
    pub rope: LayerRope,
    /// What mixes positions.
    pub mixer: Mixer,
    /// What kind of MLP.
    pub mlp: LayerMlp,
}

/// What mixes a layer's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Attention.
    Attention,
    /// The recurrent mixer in `Config::recurrent` (lfm2, qwen3_5).
    Recurrent,
    /// Both read the normed row, and both are added (falcon_h1).
    Both,
    /// Nothing: the layer is an MLP (nemotron_h).
    None,
}

impl Mixer {
    /// Whether the layer has attention, and so keys and values.
    pub fn has_attention(self) -> bool {
        matches!(self, Mixer::Attention | Mixer::Both)
    }

    /// Whether the layer has a recurrent state.
    pub fn is_recurrent(self) -> bool {
        matches!(self, Mixer::Recurrent | Mixer::Both)
    }
}

/// Which earlier positions a position attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Itself and all positions before it.
    Causal,
    /// `sliding_window`: this many positions, itself included (mistral, gemma2).
    Sliding(usize),
}

/// How q and k are rotated by their position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRope {
    /// No rotation: NoPE (smollm3, cohere2), or learned positions (gpt2).
    None,
    /// The index of the rope in `Config::ropes`.
    Rotary(usize),
}

/// What kind of MLP a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerMlp {
    /// One for all tokens.
    Dense,
    /// The mixture of experts in `Config::moe`.
    Moe,
    /// None: the layer is a mixer (nemotron_h).
    None,
}

/// What a token's position does to its embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingPosition {
    /// Nothing: positions enter in the layers.
    None,
    /// A learned row is added (gpt2, gpt_neo).
    Learned,
    /// It is rotated by the first of `Config::ropes` (dtransformer_rope).
    Rotated {
        /// Number of the first token.
        first_position: usize,
    },
}

/// Normalization of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub enum Norm {
    /// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).
    RmsNorm {
        /// `rms_norm_eps`.
        eps: f32,
    },
    /// (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016).
    LayerNorm {
        /// `layer_norm_eps`.
        eps: f32,
    },
}

impl Norm {
    /// Its epsilon.
    pub fn eps(self) -> f32 {
        let (Norm::RmsNorm { eps } | Norm::LayerNorm { eps }) = self;
        eps
    }
}

/// What a norm's weight tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormWeight {
    /// The weight.
    Plain,
    /// The weight minus one (gemma, nemotron).
    MinusOne,
    /// There is no tensor; the weight is one (olmo).
    Absent,
}

/// Where a layer has its norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and MLP (llama).
    Before,
    /// After them, before the addition (olmo2).
    After,
    /// Both (gemma2, glm4).
    Around,
    /// After them in layers with attention, before them in recurrent ones (olmo_hybrid).
    AfterAttention,
}

/// How attention and MLP are added to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// The MLP reads the stream after attention was added.
    Sequential,
    /// x += attention(norm(x)) + mlp(norm(x)) (gptj, falcon, cohere; Wang and Komatsuzaki 2021).
    Parallel,
}

/// How queries, keys and values are projected.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub enum Attention {
    /// From the normed row.
    Heads,
    /// Multi-head latent attention: through narrow latents (DeepSeek-V2 2024).
    Mla {
        /// `q_lora_rank`; None: queries straight from the row.
        q_lora_rank: Option<usize>,
        kv_lora_rank: usize,
        /// `qk_rope_head_dim`: the part of a key that rotates, the same for all heads.
        qk_rope_head_dim: usize,
        /// Norm of both latents.
        norm: Norm,
    },
}

/// What a query's position does to its scores.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub enum QueryScaling {
    /// Nothing.
    None,
    /// q *= 1 + beta ln(1 + floor(position / trained length)) (`llama_4_scaling_beta`; ministral3).
    Llama4 {
        /// `llama_4_scaling_beta`.
        beta: f64,
        original_max_position_embeddings: usize,
    },
}

/// Norm of q and k before rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head by itself, one weight for all heads (qwen3, gemma3).
    PerHead(Bias),
    /// Each head by itself with a weight of its own, in one tensor (cohere).
    PerHeadOwn,
    /// Each head by itself with a weight of its own, in one tensor per head (stablelm).
    PerHeadSplit,
    /// All heads as one row (olmo2).
    FullWidth,
}

/// A gate of attention's output, from the layer's normed input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionGate {
    /// None.
    None,
    /// Times sigmoid(gate(x)) (afmoe, beam).
    Sigmoid(GateWidth),
}

/// How many gates attention has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateWidth {
    /// One per query head.
    PerHead,
    /// One per value of the output.
    PerChannel,
}

/// Attention sinks: a learned score per query head that takes part in the softmax and has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sinks {
    /// None.
    None,
    /// `self_attn.sinks` (gpt_oss).
    PerHead,
}

/// The MLP's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpShape {
    /// down(act(gate(x)) * up(x)) (Shazeer 2020).
    Gated,
    /// down(act(up(x))).
    Plain,
}

/// Whether a projection has a bias vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// No bias tensor.
    None,
    /// `<projection>.bias`, added to the product.
    Added,
}

/// Where the matrix of the projection to logits comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmHead {
    /// `tie_word_embeddings`: the embedding itself (either name may be in the file).
    Tied,
    /// `lm_head.weight`.
    Own,
}

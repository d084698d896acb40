//! The structural choices of a decoder: one enum per choice, named in the field's words.

use ropechat_kernels::kernel::Activation;

/// The properties of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// Which earlier positions a position attends to.
    pub mask: Mask,
    /// Another factor of the scores: 1, or 1 / (layer + 1) (`scale_attn_by_inverse_layer_idx`; gpt2).
    pub attention_scale: f32,
    /// How q and k are rotated by their position.
    pub rope: LayerRope,
    /// The mixer of positions.
    pub mixer: Mixer,
    /// The kind of MLP.
    pub mlp: LayerMlp,
    /// The layer's own numbers and widths of heads, if they differ from the model's (gemma4, laguna, mimo_v2_flash).
    pub heads: Option<Heads>,
    /// How the layer projects queries, keys and values, where it is not as in the model (dots3_note_text).
    pub attention: Option<Attention>,
    /// The dense MLP's width, where it is not the model's (gemma4).
    pub intermediate_size: Option<usize>,
    /// The earlier layer whose keys and values it reads; it has none of its own (`num_kv_shared_layers`; gemma3n, gemma4).
    pub shares_kv_of: Option<usize>,
    /// The earlier layer whose weights it uses, with its own keys and values (hrm_text).
    pub repeats: Option<usize>,
    /// Where the values come from.
    pub values: Values,
    /// Factors of the stream and of the branch where attention and the MLP are added.
    pub residual_factors: [ResidualFactors; 2],
    /// The dense MLP's activation, where it is neither the model's nor in tensors (apertus in GGUF files).
    pub activation: Option<Activation>,
    /// `activation_sparsity_pattern`: gates below mean + this many standard deviations are zero (gemma3n).
    pub gate_cutoff: Option<f32>,
}

/// Where a layer's values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// A separate projection.
    Own,
    /// The keys' projection, before norm and rotation (`attention_k_eq_v`; gemma4).
    OfKeyProjection,
    /// The keys, normed and rotated (deepseek_v4).
    OfKeys,
}

/// Numbers and widths of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct Heads {
    pub num_attention_heads: usize,
    /// Divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head's query and key.
    pub head_dim: usize,
    /// Width of one head's value.
    pub v_head_dim: usize,
}

impl Heads {
    /// Query heads that share one key/value head.
    pub fn group_size(self) -> usize {
        self.num_attention_heads / self.num_key_value_heads
    }

    /// Values of a row of queries.
    pub fn q_width(self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Values of a row of queries and keys together.
    pub fn qk_width(self) -> usize {
        (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
    }

    /// Values of a row of queries, keys and values together.
    pub fn qkv_width(self) -> usize {
        self.qk_width() + self.num_key_value_heads * self.v_head_dim
    }

    /// Values of a row of attention's output.
    pub fn out_width(self) -> usize {
        self.num_attention_heads * self.v_head_dim
    }
}

/// x = stream * x + branch * result, where a branch is added (beam scales both by the layer's depth).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResidualFactors {
    /// Factor of the stream.
    pub stream: f32,
    /// Factor of the branch.
    pub branch: f32,
}

impl ResidualFactors {
    /// x += result.
    pub const ONE: ResidualFactors = ResidualFactors { stream: 1.0, branch: 1.0 };
}

/// What mixes a layer's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Attention.
    Attention,
    /// The recurrent mixer in `Config::recurrent` (lfm2, qwen3_5).
    Recurrent,
    /// Both read the normed row, and both are added (falcon_h1), or the mixer reads what a shared block gives (zamba2).
    Both,
    /// Attention that keeps a window of what it projects: for convolutions (zaya, inkling), for compressed keys (deepseek_v4).
    AttentionWithWindow,
    /// Nothing: the layer is an MLP (nemotron_h).
    None,
}

impl Mixer {
    /// Whether the layer has attention, and so keys and values.
    pub fn has_attention(self) -> bool {
        !matches!(self, Mixer::Recurrent | Mixer::None)
    }

    /// Whether the layer has a recurrent state.
    pub fn is_recurrent(self) -> bool {
        !matches!(self, Mixer::Attention | Mixer::None)
    }
}

/// Which earlier positions a position attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Itself and all positions before it.
    Causal,
    /// `sliding_window`: this many positions, itself included (mistral, gemma2).
    Sliding(usize),
    /// `attention_chunk_size`: those of its chunk of this many positions (llama4).
    Chunked(usize),
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
    /// The mixture of experts in `Config::moe`, where a table says which experts each token takes; the router weights them (Hash Layers, Roller et al.
    /// 2021, <https://arxiv.org/abs/2106.04426>; deepseek_v4).
    HashMoe,
    /// None: the layer is a mixer (nemotron_h).
    None,
    /// Both side by side, each with its own norms (gemma4).
    DenseAndMoe,
    /// Both from the same normed row; what the mixture gives is added at the end of the next layer (longcat_flash).
    DenseAndMoeForNext,
}

/// The effect of a token's position on its embedding.
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
    /// None in the layers and none after them (qwen4_exp, whose hyper-connections norm the input of a branch).
    None,
    /// Before attention and MLP (llama).
    Before,
    /// After them, before the addition (olmo2).
    After,
    /// Both (gemma2, glm4).
    Around,
    /// After them in layers with attention, before them in recurrent ones (olmo_hybrid).
    AfterAttention,
    /// Before attention and MLP, and after mixtures of experts (axk1).
    BeforeAndAfterMoe,
    /// Before attention and MLP, but for the first layer's attention (modernbert-decoder).
    BeforeButFirst,
    /// Before attention and MLP, with a gate (`gated_norm_rank`) before attention and before mixtures of experts (axk2).
    BeforeGated {
        /// Width of the gate's low-rank projection.
        gated_norm_rank: usize,
    },
    /// Before attention and MLP, in the stream itself: a branch is added to the normed row (minimax).
    InStream,
}

/// How attention and MLP are added to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// The MLP reads the stream after attention was added.
    Sequential,
    /// x += attention(norm(x)) + mlp(norm(x)) (gptj, falcon, cohere; Wang and Komatsuzaki 2021).
    Parallel,
    /// As `Sequential`, where learned vectors scale and shift the stream and what is added (zaya).
    Scaled,
    /// As `Sequential`, where learned vectors scale the stream (doge).
    StreamScaled,
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
        /// Factors of the normed latents of q, and of k and v (longcat_flash).
        latent_factors: [f32; 2],
        /// What queries are projected from.
        q_latent: QueryLatent,
        /// Norm of the rotated part of a key (dots3_note_text).
        k_rope_norm: Option<Norm>,
    },
    /// As a mechanism does it, which also adds the outputs of the heads (jetmoe, deepseek_v4).
    OfMechanism,
}

/// The input of latent attention's projection of queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryLatent {
    /// The normed latent, or the row where there is none.
    Normed,
    /// The normed latent and the latent itself, side by side; per head the query, then the gate of its output (axk2).
    NormedAndRaw,
}

/// Learned scores by distance: a projection of the row to `d_rel` numbers per query head mixes as many profiles of scores, one
/// for each distance, which are added to the head's scores (inkling).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct RelativeScores {
    pub d_rel: usize,
    /// Distances that have a score, in layers without a window; others have as many as their window is long.
    pub rel_extent: usize,
}

impl RelativeScores {
    /// Distances that have a score in a layer.
    pub fn extent(self, layer: &LayerSpec) -> usize {
        match layer.mask {
            Mask::Sliding(window) => window,
            Mask::Causal | Mask::Chunked(_) => self.rel_extent,
        }
    }
}

/// The effect of a query's position on its scores.
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
    /// In layers that do not rotate, q *= 1 + attn_scale ln(1 + floor((position + 1) / floor_scale)) (llama4).
    WhereUnrotated { attn_scale: f64, floor_scale: f64 },
    /// In layers that do not rotate, q *= (1 + (position + 1) / length)^exponent (beam).
    PowerWhereUnrotated { exponent: f64, length: f64 },
    /// In layers without a window, q and the learned scores by distance *= 1 + alpha ln(max((position + 1) / n_floor, 1))
    /// (`log_scaling_alpha`, `log_scaling_n_floor`; inkling).
    LogWhereUnwindowed { alpha: f64, n_floor: f64 },
}

impl QueryScaling {
    /// The factor of a layer's queries at a position.
    pub fn factor(self, layer: &LayerSpec, position: usize) -> f64 {
        match (self, layer.rope) {
            (QueryScaling::LogWhereUnwindowed { alpha, n_floor }, _) if layer.mask == Mask::Causal => {
                1.0 + alpha * ((position + 1) as f64 / n_floor).max(1.0).ln()
            }
            (QueryScaling::Llama4 { beta, original_max_position_embeddings: trained }, _) => {
                1.0 + beta * ((position / trained) as f64).ln_1p()
            }
            (QueryScaling::WhereUnrotated { attn_scale, floor_scale }, LayerRope::None) => {
                1.0 + attn_scale * ((position + 1) as f64 / floor_scale).floor().ln_1p()
            }
            (QueryScaling::PowerWhereUnrotated { exponent, length }, LayerRope::None) => {
                (1.0 + (position + 1) as f64 / length).powf(exponent)
            }
            _ => 1.0,
        }
    }
}

/// Norm of q and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head by itself, one weight for all heads (qwen3, gemma3).
    PerHead(Bias),
    /// Each head by itself with its own weight, in one tensor (cohere).
    PerHeadOwn,
    /// Each head by itself with its own weight, in one tensor per head (stablelm).
    PerHeadSplit,
    /// All heads as one row (olmo2).
    FullWidth,
    /// Each head by itself, without a weight, in layers that rotate (llama4, nanochat).
    Unweighted,
    /// Each head to the length sqrt(head_dim), without an epsilon; keys times a learned number per head (zaya).
    Length,
}

/// Where q and k are normed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormPlace {
    /// Before rotation (qwen3).
    BeforeRotation,
    /// After it (hunyuan, llama4, nanochat).
    AfterRotation,
}

/// Norm of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueNorm {
    /// None.
    None,
    /// Each head by itself, without a weight (gemma3n, gemma4).
    PerHead,
}

/// A gate of attention's output, from the layer's normed input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionGate {
    /// None.
    None,
    /// Times sigmoid(gate(x)) (afmoe, beam).
    Sigmoid(GateWidth),
    /// Times ln(1 + e^gate(x)) (laguna).
    Softplus(GateWidth),
}

/// How many gates attention has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateWidth {
    /// One per query head.
    PerHead,
    /// One per value of the output.
    PerChannel,
    /// One per value of the output, with one bias per head, `Names::gate_bias` (beam).
    PerChannelBiasPerHead,
}

impl AttentionGate {
    /// Its width, if there is one.
    pub fn width(self) -> Option<GateWidth> {
        match self {
            AttentionGate::None => None,
            AttentionGate::Sigmoid(width) | AttentionGate::Softplus(width) => Some(width),
        }
    }

    /// Rows of the gate's matrix.
    pub fn rows(self, heads: Heads) -> usize {
        match self.width() {
            None => 0,
            Some(GateWidth::PerHead) => heads.num_attention_heads,
            Some(GateWidth::PerChannel | GateWidth::PerChannelBiasPerHead) => heads.out_width(),
        }
    }
}

/// Norms inside attention and MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubNorms {
    /// None.
    None,
    /// Of the inputs of o_proj and down_proj (bitnet).
    BeforeOutput,
}

/// Norm of the embedding before the first layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingNorm {
    /// None.
    None,
    /// As the norm after the last layer (modernbert-decoder, nanochat).
    Normed,
}

/// A second embedding, a part of which each layer adds behind a gate (gemma3n, gemma4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct PerLayerEmbedding {
    pub hidden_size_per_layer_input: usize,
    pub vocab_size_per_layer_input: usize,
}

/// A learned factor of each layer's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerScalar {
    /// None.
    None,
    /// `layer_scalar` (gemma4).
    Learned,
}

/// Attention sinks: a learned score per query head that is in the softmax and has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sinks {
    /// None.
    None,
    /// `self_attn.sinks` (gpt_oss).
    PerHead,
    /// In windowed layers (mimo_v2_flash).
    PerHeadInWindows,
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
    /// `<projection>.bias`, in the last layer only (gpt_neox_japanese).
    AddedInLastLayer,
}

/// What happens to a row between the last norm and the projection to logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadTransform {
    /// Nothing.
    None,
    /// norm(act(dense(x))) (modernbert-decoder).
    DenseAndNorm {
        /// `classifier_activation`.
        activation: Activation,
        /// `classifier_bias`.
        bias: Bias,
    },
}

/// How the outputs of the heads are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOutputs {
    /// Each as it is.
    Own,
    /// The first half of the heads minus lambda times the second half, each with values of two heads, normed in pairs
    /// (Differential Transformer, Ye et al. 2024, <https://arxiv.org/abs/2410.05258>; diffllama).
    Differential,
}

/// Where the matrix of the projection to logits comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmHead {
    /// `tie_word_embeddings`: the embedding itself (either name may be in the file).
    Tied,
    /// `lm_head.weight`.
    Own,
    /// `lm_head.weight` where the file has it, else the embedding: a config that does not say (`family/composite.rs`). Never in
    /// the config of an open model.
    OwnIfStored,
}

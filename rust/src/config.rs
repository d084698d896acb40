//! What a model is, in the field's words: enums resolved at load, no booleans, no "which family" later on.
//!
//! Field names are the keys of Hugging Face's `config.json`. A family file (`family/`) turns metadata into a [`Config`].

use crate::quant::DType;

/// Everything that the forward pass needs to know beside the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `model_type` of config.json.
    pub model_type: String,
    /// Rows of the embedding and of P.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Trained length in tokens.
    pub max_position_embeddings: usize,
    /// One per layer, in order.
    pub layers: Vec<LayerSpec>,
    /// Normalization before attention, before the MLP and at the end.
    pub norm: Norm,
    /// The MLP's activation.
    pub activation: Activation,
    /// Biases of q, k, v and o projections.
    pub attention_bias: Bias,
    /// Biases of gate, up and down projections.
    pub mlp_bias: Bias,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Where the unembedding comes from.
    pub lm_head: LmHead,
    /// `bos_token_id`, when the config states one.
    pub bos_token_id: Option<u32>,
    /// `eos_token_id` as a list (old configs hold one number).
    pub eos_token_id: Vec<u32>,
    /// `torch_dtype` / `dtype`: what the checkpoint says of itself.
    pub torch_dtype: Option<DType>,
}

impl Config {
    /// Tokens that a sequence can have: the trained length, or what dynamic NTK stretches it to.
    pub fn usable_length(&self) -> usize {
        match self.rope.scaling {
            RopeScaling::Dynamic { factor, .. } => (self.max_position_embeddings as f64 * factor) as usize,
            _ => self.max_position_embeddings,
        }
    }

    /// Query heads that share one key/value head.
    pub fn group_size(&self) -> usize {
        self.num_attention_heads / self.num_key_value_heads
    }
}

/// What differs from layer to layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// Which earlier positions a position sees.
    pub mask: Mask,
}

/// Which earlier positions a position sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Itself and all before it.
    Causal,
}

/// Normalization of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norm {
    /// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).
    RmsNorm {
        /// `rms_norm_eps`.
        eps: f32,
    },
}

/// Activation of the gated MLP: down(act(gate(x)) * up(x)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
}

/// Whether a projection has a bias vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// No bias tensor.
    None,
    /// `<projection>.bias`, added to the product.
    Added,
}

/// Where the unembedding matrix comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmHead {
    /// `tie_word_embeddings`: the embedding itself (either name may be in the file).
    Tied,
    /// `lm_head.weight`.
    Own,
}

/// Rotary position embedding (Su et al. 2021, RoFormer).
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// `rope_theta`, the base.
    pub theta: f64,
    /// Leading dimensions of a head that rotate; even.
    pub rotary_dim: usize,
    /// Which two dimensions make a pair.
    pub layout: RopeLayout,
    /// How frequencies change for lengths beyond the trained one.
    pub scaling: RopeScaling,
}

/// Which two dimensions make a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// (i, i + rotary_dim / 2): Hugging Face's llama files.
    HalfSplit,
}

/// `rope_scaling` / `rope_parameters`.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// `default`.
    None,
    /// `linear` (Chen et al. 2023, position interpolation): frequencies / factor.
    Linear {
        /// `factor`.
        factor: f64,
    },
    /// `dynamic` NTK: beyond the trained length the base grows with the sequence's length.
    Dynamic {
        /// `factor`.
        factor: f64,
        /// Trained length.
        original_max_position_embeddings: usize,
    },
    /// `llama3`: low frequencies / factor, high ones kept, a ramp between.
    Llama3 {
        /// `factor`.
        factor: f64,
        /// `low_freq_factor`.
        low_freq_factor: f64,
        /// `high_freq_factor`.
        high_freq_factor: f64,
        /// Trained length.
        original_max_position_embeddings: usize,
    },
    /// `yarn` (Peng et al. 2023).
    Yarn {
        /// `factor`.
        factor: f64,
        /// Trained length.
        original_max_position_embeddings: usize,
        /// `beta_fast`.
        beta_fast: f64,
        /// `beta_slow`.
        beta_slow: f64,
        /// Multiplies cos and sin (`attention_factor`, or from `mscale` and `mscale_all_dim`).
        attention_factor: f64,
        /// `truncate`: round the ramp's ends to whole dimensions.
        truncate: bool,
    },
}

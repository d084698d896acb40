//! Rotary position embeddings.

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
    /// (i, i + rotary_dim / 2): GPT-NeoX, and Hugging Face's llama files.
    Neox,
    /// (2i, 2i + 1): RoFormer, gptj, cohere, glm, deepseek.
    Interleaved,
}

/// `rope_scaling` / `rope_parameters`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub enum RopeScaling {
    /// `default`.
    None,
    /// `linear` (Chen et al. 2023, position interpolation): frequencies / factor.
    Linear { factor: f64 },
    /// `dynamic` NTK: beyond the trained length the base grows with the sequence's length.
    Dynamic { factor: f64, original_max_position_embeddings: usize },
    /// `llama3`: low frequencies / factor, high ones kept, a ramp between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position_embeddings: usize,
    },
    /// `yarn` (Peng et al. 2023).
    Yarn {
        factor: f64,
        original_max_position_embeddings: usize,
        beta_fast: f64,
        beta_slow: f64,
        /// Multiplies cos and sin (`attention_factor`, or from `mscale` and `mscale_all_dim`).
        attention_factor: f64,
        /// `truncate`: round the ramp's ends to whole dimensions.
        truncate: bool,
    },
    /// `proportional` (gemma4): the leading pairs have the frequencies of a fully rotated head, the others are not rotated;
    /// frequencies / factor.
    Proportional {
        /// `partial_rotary_factor`: the share of the pairs that is rotated.
        partial_rotary_factor: f64,
        factor: f64,
    },
    /// A divisor per pair (`rope_freqs.weight` of GGUF files, which holds the result of `llama3`).
    Divided {
        /// Frequencies are divided by them.  // [rotary_dim / 2]
        factors: Vec<f64>,
    },
    /// `longrope`, `su` (Ding et al. 2024): a divisor per pair, another set beyond the trained length.
    LongRope {
        /// Divisors within the trained length.  // [rotary_dim / 2]
        short_factor: Vec<f64>,
        /// Divisors beyond it.  // [rotary_dim / 2]
        long_factor: Vec<f64>,
        original_max_position_embeddings: usize,
        /// Multiplies cos and sin within the trained length, and beyond it.
        attention_factors: [f64; 2],
    },
}

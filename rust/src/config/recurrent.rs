//! Mixers with a state of fixed size in place of keys and values by position.

use super::structure::Bias;

/// The recurrent mixer of a model's layers; `LayerSpec::mixer` says which layers have one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recurrent {
    /// out_proj(C * conv(B * x)): a gated short convolution (lfm2).
    ShortConv {
        /// `conv_L_cache`: positions that the convolution sees, its own included.
        kernel_size: usize,
        /// Biases of the convolution and of both projections.
        bias: Bias,
    },
    /// A matrix per head that decays, learns from a key and a value, and is read by a query.
    Linear(LinearAttention),
}

/// Linear attention with decay: per head, S = decay * S + key (x) update, out = S^T query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearAttention {
    /// What decays the state, and what is learned.
    pub rule: LinearRule,
    /// Heads of queries and keys; divides `num_value_heads`.
    pub num_key_heads: usize,
    /// Heads of values, each with a state of its own.
    pub num_value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Positions that the convolution before it sees.
    pub conv_kernel_size: usize,
    /// Bias of that convolution.
    pub conv_bias: Bias,
    /// Bias of the input projection.
    pub in_bias: Bias,
    /// Bias of the output projection.
    pub out_bias: Bias,
    /// What is done to the output before its projection.
    pub output: GatedOutput,
}

/// What decays the state of linear attention, and what it learns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinearRule {
    /// Gated DeltaNet (Yang et al. 2024): decay exp(-exp(A_log) softplus(a + dt_bias)) per head, update
    /// beta (value - S^T key), q and k of length one (qwen3_next, qwen3_5, olmo_hybrid).
    GatedDelta {
        /// beta is this times sigmoid(b): 1, or 2 (`linear_allow_neg_eigval`; olmo_hybrid).
        beta: f32,
    },
    /// Mamba-2 (Dao and Gu 2024): dt = softplus(dt + dt_bias), decay exp(-exp(A_log) dt), update dt x; D x is added.
    Mamba2 {
        /// `time_step_limit`: dt is kept between these.
        time_step_limit: [f32; 2],
        /// Factors of z, x, B, C and dt (`ssm_multipliers`; falcon_h1).
        multipliers: [f32; 5],
    },
}

/// The gate z and the norm of the output of linear attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GatedOutput {
    /// out * silu(z), without a norm (falcon_h1).
    Gate,
    /// norm(out) * silu(z), the norm over groups of this many values (qwen3_next: a head).
    NormThenGate {
        /// Epsilon.
        eps: f32,
        /// Values that are normed together.
        group: usize,
        /// Whether all groups share one weight.
        shared_weight: bool,
    },
    /// norm(out * silu(z)), the norm over groups of this many values (mamba-2 families).
    GateThenNorm {
        /// Epsilon.
        eps: f32,
        /// Values that are normed together.
        group: usize,
    },
}

/// Factors of what a mixer reads and of what it adds (`ssm_in_multiplier`, `ssm_out_multiplier`; falcon_h1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BranchFactors {
    /// Of the normed row.
    pub input: f32,
    /// Of the result.
    pub output: f32,
}

impl BranchFactors {
    /// Neither.
    pub const ONE: BranchFactors = BranchFactors { input: 1.0, output: 1.0 };
}

impl LinearAttention {
    /// Values of all queries, or of all keys.
    pub fn keys_width(&self) -> usize {
        self.num_key_heads * self.key_dim
    }

    /// Values of all values.
    pub fn values_width(&self) -> usize {
        self.num_value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn conv_width(&self) -> usize {
        2 * self.keys_width() + self.values_width()
    }

    /// Scalars per head behind z in the input projection: b and a, or dt.
    pub fn scalars(&self) -> usize {
        match self.rule {
            LinearRule::GatedDelta { .. } => 2,
            LinearRule::Mamba2 { .. } => 1,
        }
    }

    /// Rows of the input projection: the convolution's channels, z, and the scalars of all heads.
    pub fn in_width(&self) -> usize {
        self.conv_width() + self.values_width() + self.scalars() * self.num_value_heads
    }
}

impl Recurrent {
    /// Values per position that the convolution keeps, and how many positions.
    pub fn window(&self, hidden_size: usize) -> (usize, usize) {
        match self {
            Recurrent::ShortConv { kernel_size, .. } => (hidden_size, kernel_size - 1),
            Recurrent::Linear(linear) => (linear.conv_width(), linear.conv_kernel_size - 1),
        }
    }

    /// Heads with a matrix, and its sizes: keys and values.
    pub fn matrices(&self) -> (usize, usize, usize) {
        match self {
            Recurrent::ShortConv { .. } => (0, 0, 0),
            Recurrent::Linear(linear) => (linear.num_value_heads, linear.key_dim, linear.value_dim),
        }
    }
}

//! Mixers with a state of fixed size in place of keys and values by position.

use super::facts::MixerFacts;
use super::structure::Bias;
use crate::mechanisms::mixers;
use ropechat_kernels::kernel::Activation;

macro_rules! all_mixers {
    ($($name:ident: $facts:ident,)+) => {
        /// The recurrent mixer of a model's layers; `LayerSpec::mixer` says which layers have one.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Recurrent {
            /// A matrix per head that decays, learns from a key and a value, and is read by a query.
            Linear(LinearAttention),
            /// None: attention and the mechanisms around it keep a window ([`Mixer::AttentionWithWindow`]).
            ///
            /// [`Mixer::AttentionWithWindow`]: super::Mixer::AttentionWithWindow
            Window(Window),
            $(
                #[allow(missing_docs)] // the name of its facts
                $facts(crate::mechanisms::$name::config::$facts),
            )+
        }

        impl Recurrent {
            /// Its facts.
            pub fn facts(&self) -> &dyn MixerFacts {
                match self {
                    Recurrent::Linear(facts) => facts,
                    Recurrent::Window(facts) => facts,
                    $( Recurrent::$facts(facts) => facts, )+
                }
            }

            /// Its facts, to be changed.
            pub fn facts_mut(&mut self) -> &mut dyn MixerFacts {
                match self {
                    Recurrent::Linear(facts) => facts,
                    Recurrent::Window(facts) => facts,
                    $( Recurrent::$facts(facts) => facts, )+
                }
            }
        }
    };
}
mixers!(all_mixers);

/// A window of the last positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Values of a position, in the layer that keeps most.
    pub values: usize,
    /// Positions.
    pub positions: usize,
}

impl MixerFacts for Window {
    fn window(&self) -> (usize, usize) {
        (self.values, self.positions)
    }
}

impl MixerFacts for LinearAttention {
    fn window(&self) -> (usize, usize) {
        (self.conv_width(), self.conv_kernel_size - 1)
    }

    fn matrices(&self) -> (usize, usize, usize) {
        (self.num_value_heads, self.key_dim, self.value_dim)
    }
}

/// Linear attention with decay: per head, S = decay * S + key (x) update, out = S^T query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearAttention {
    /// The decay and the update of the state.
    pub rule: LinearRule,
    /// Heads of queries and keys; divides `num_value_heads`.
    pub num_key_heads: usize,
    /// Heads of values, each with its own state.
    pub num_value_heads: usize,
    /// Which key head a value head has.
    pub key_heads: KeyHeads,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Positions that the convolution before it sees.
    pub conv_kernel_size: usize,
    /// Bias of that convolution.
    pub conv_bias: Bias,
    /// What follows it.
    pub conv_activation: Activation,
    /// Bias of the input projection.
    pub in_bias: Bias,
    /// Bias of the output projection.
    pub out_bias: Bias,
    /// The operation on the output before its projection.
    pub output: GatedOutput,
    /// The activation of the gate z: silu, or sigmoid (kimi_linear).
    pub gate: Activation,
    /// Rank of the projections to z and to the decay; None: they have no latents (kimi_linear).
    pub gate_rank: Option<usize>,
}

/// Which key head a value head has, where there are fewer of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyHeads {
    /// Neighbours share one.
    Grouped,
    /// The key heads in turn, again and again (llama.cpp's files of qwen3_5).
    Tiled,
}

/// The decay and the update of the state of linear attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinearRule {
    /// Gated DeltaNet (Yang et al. 2024): decay exp(-exp(A_log) softplus(a + dt_bias)) per head, update
    /// beta (value - S^T key), q and k of length one (qwen3_next, qwen3_5, olmo_hybrid).
    GatedDelta {
        /// beta is this times sigmoid(b): 1, or 2 (`linear_allow_neg_eigval`; olmo_hybrid).
        beta: f32,
    },
    /// Kimi Delta Attention (Kimi Team 2025): as Gated DeltaNet, with a decay per key channel, from f + dt_bias
    /// (kimi_linear, bailing_hybrid).
    KimiDelta {
        /// None: decay exp(-exp(A_log) softplus(f + dt_bias)). Else exp(this * sigmoid(exp(A_log) (f + dt_bias)))
        /// (`kda_lower_bound`; bailing_hybrid).
        lower_bound: Option<f32>,
    },
    /// Mamba-2 (Dao and Gu 2024): dt = softplus(dt + dt_bias), decay exp(-exp(A_log) dt), update dt x; D x is added.
    Mamba2 {
        /// `time_step_limit`: dt is kept between these.
        time_step_limit: [f32; 2],
        /// Factors of z, x, B, C and dt (`ssm_multipliers`; falcon_h1).
        multipliers: [f32; 5],
    },
}

/// The gate z and the norm of the output of linear attention. act: silu or sigmoid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GatedOutput {
    /// out * act(z), without a norm (falcon_h1).
    Gate,
    /// norm(out) * act(z), the norm over groups of this many values (qwen3_next: a head).
    NormThenGate {
        /// Epsilon.
        eps: f32,
        /// Values that are normed together.
        group: usize,
        /// Whether all groups share one weight.
        shared_weight: bool,
    },
    /// norm(out * act(z)), the norm over groups of this many values (mamba-2 families).
    GateThenNorm {
        /// Epsilon.
        eps: f32,
        /// Values that are normed together.
        group: usize,
    },
}

/// Factors of a mixer's input and output (`ssm_in_multiplier`, `ssm_out_multiplier`; falcon_h1).
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
    /// The key head of a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.key_heads {
            KeyHeads::Grouped => value_head / (self.num_value_heads / self.num_key_heads),
            KeyHeads::Tiled => value_head % self.num_key_heads,
        }
    }

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

    /// Columns of the input projection that z takes, or its latent.
    pub fn gate_width(&self) -> usize {
        self.gate_rank.unwrap_or(self.values_width())
    }

    /// Columns after z in the input projection: b and a, b and f or its latent, or dt.
    pub fn step_width(&self) -> usize {
        let heads = self.num_value_heads;
        match self.rule {
            LinearRule::GatedDelta { .. } => 2 * heads,
            LinearRule::KimiDelta { .. } => heads + self.gate_rank.unwrap_or(self.keys_width()),
            LinearRule::Mamba2 { .. } => heads,
        }
    }

    /// Rows of the input projection: the convolution's channels, z, and the inputs of the steps.
    pub fn in_width(&self) -> usize {
        self.conv_width() + self.gate_width() + self.step_width()
    }
}

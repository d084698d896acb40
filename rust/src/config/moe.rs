//! Mixtures of experts.

use super::structure::Bias;

/// A mixture of experts (Shazeer et al. 2017).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moe {
    /// `num_experts`, `num_local_experts`, `n_routed_experts`.
    pub num_experts: usize,
    /// Experts per token.
    pub num_experts_per_tok: usize,
    /// `moe_intermediate_size`.
    pub intermediate_size: usize,
    /// From the router's logits to the weights of the chosen.
    pub scoring: Scoring,
    /// How the choice is limited to groups of experts.
    pub groups: ExpertGroups,
    /// `routed_scaling_factor`: factor of the weights.
    pub scaling: f32,
    /// Biases of the router and the experts.
    pub bias: Bias,
    /// An expert that every token passes.
    pub shared: SharedExpert,
}

/// From the router's logits to the weights of the chosen experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts, not normalized again (qwen2_moe, deepseek_v2).
    Softmax,
    /// Softmax over the chosen experts: their weights sum to one (mixtral, qwen3_moe, gpt_oss).
    SoftmaxOfChosen,
    /// Sigmoid; chosen by the sum with `e_score_correction_bias` (deepseek_v3).
    Sigmoid,
    /// As `Sigmoid`, with weights that are normalized to a sum of one.
    SigmoidNormalized,
}

impl Scoring {
    /// Whether `e_score_correction_bias` is added to the scores for the choice.
    pub fn has_correction_bias(self) -> bool {
        matches!(self, Scoring::Sigmoid | Scoring::SigmoidNormalized)
    }
}

/// How the choice of experts is limited to groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertGroups {
    /// All experts may be chosen.
    None,
    /// Only experts of the `topk_group` best of `n_group` groups.
    Limited {
        /// Number of groups.
        n_group: usize,
        /// Groups whose experts a token may choose.
        topk_group: usize,
        /// A group's score is the sum of its `group_top_k` best experts' scores (1: deepseek_v2; 2: deepseek_v3).
        group_top_k: usize,
    },
}

/// An expert that every token passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedExpert {
    /// None.
    None,
    /// Added (deepseek).
    Added {
        /// Width of its MLP.
        intermediate_size: usize,
    },
    /// Added times sigmoid(shared_expert_gate(x)) (qwen2_moe).
    Gated {
        /// Width of its MLP.
        intermediate_size: usize,
    },
}

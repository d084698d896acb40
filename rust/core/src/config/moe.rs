//! Mixtures of experts.

use super::structure::Bias;
use ropechat_kernels::kernel::Activation;

/// A mixture of experts (Shazeer et al. 2017).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moe {
    /// `num_experts`, `num_local_experts`, `n_routed_experts`.
    pub num_experts: usize,
    /// Experts per token.
    pub num_experts_per_tok: usize,
    /// `moe_intermediate_size`.
    pub intermediate_size: usize,
    /// From the router's logits to scores.
    pub scoring: Scoring,
    /// `e_score_correction_bias`: added to the scores for the choice only (deepseek_v3).
    pub correction_bias: Bias,
    /// From the scores of the chosen experts to their weights.
    pub normalization: Normalization,
    /// How the choice is limited to groups of experts.
    pub groups: ExpertGroups,
    /// `routed_scaling_factor`: factor of the weights.
    pub scaling: f32,
    /// What the router and the experts read.
    pub input: ExpertInput,
    /// `moe_latent_size`: the routed experts work between two projections, to this width and back (nemotron_h).
    pub latent_size: Option<usize>,
    /// Biases of those projections.
    pub latent_bias: Bias,
    /// `moe_router_logit_softcapping`: logits become cap * tanh(logit / cap) (laguna).
    pub logit_softcapping: Option<f32>,
    /// `zero_expert_num`: more experts, whose output is their input (longcat_flash).
    pub zero_experts: usize,
    /// The routed experts' activation, where it is not the model's (hy_v4).
    pub activation: Option<Activation>,
    /// Biases of the router and the experts.
    pub bias: Bias,
    /// An expert that every token passes.
    pub shared: SharedExpert,
    /// What makes the router's logits.
    pub router: Router,
    /// Factor of the sum of all experts (cohere2_moe: 1/2, the average of routed and shared).
    pub output_factor: f32,
    /// A bias of that sum (jetmoe).
    pub output_bias: Bias,
}

impl Moe {
    /// Softmax over the chosen experts, nothing else (mixtral).
    pub fn plain(num_experts: usize, num_experts_per_tok: usize, intermediate_size: usize) -> Moe {
        Moe {
            num_experts,
            num_experts_per_tok,
            intermediate_size,
            scoring: Scoring::Softmax,
            correction_bias: Bias::None,
            normalization: Normalization::SUM,
            groups: ExpertGroups::None,
            scaling: 1.0,
            input: ExpertInput::Normed,
            latent_size: None,
            latent_bias: Bias::None,
            logit_softcapping: None,
            zero_experts: 0,
            activation: None,
            bias: Bias::None,
            shared: SharedExpert::None,
            router: Router::Linear,
            output_factor: 1.0,
            output_bias: Bias::None,
        }
    }

    /// Rows of the router.
    pub fn router_rows(&self) -> usize {
        self.choosable() + self.always_chosen()
    }

    /// What tokens choose from: experts, and none of them where the router has an MLP.
    pub fn choosable(&self) -> usize {
        self.num_experts + self.zero_experts + usize::from(self.router != Router::Linear)
    }

    /// Experts that the router scores and every token passes; their numbers follow those of the others.
    pub fn always_chosen(&self) -> usize {
        match self.shared {
            SharedExpert::Scored { count } => count,
            _ => 0,
        }
    }
}

/// From the router's logits to scores; the experts with the highest scores are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scoring {
    /// Softmax over all experts (mixtral, qwen2_moe, deepseek_v2).
    Softmax,
    /// Sigmoid (deepseek_v3, llama4).
    Sigmoid,
    /// sqrt(softplus(logit)) (deepseek_v4).
    SqrtSoftplus,
    /// The logit makes the choice, its sigmoid the weight (kolibri1).
    SigmoidOfLogit,
    /// `sparsemixer`: one expert after the other, each weighted by a softmax over the logits within a band of 2
    /// `jitter` below the highest one that is left (phimoe; Liu et al. 2023, <https://arxiv.org/abs/2310.00811>).
    Sparsemixer {
        /// `router_jitter_noise`.
        jitter: f32,
    },
}

/// From the scores of the chosen experts to their weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Normalization {
    /// As they are (qwen2_moe, deepseek_v2).
    None,
    /// Divided by their sum plus this much.
    Sum {
        /// Keeps the quotient finite.
        plus: f32,
    },
    /// Divided by their sum, but at least by this (ernie4_5_moe).
    SumAtLeast(f32),
    /// Divided by their p-norm (dbrx).
    PNorm(f32),
}

impl Normalization {
    /// Their sum is one (mixtral, qwen3_moe, deepseek_v3).
    pub const SUM: Normalization = Normalization::Sum { plus: 1e-20 };

    /// `norm_topk_prob`.
    pub fn sum_if(normalized: bool) -> Normalization {
        if normalized { Normalization::SUM } else { Normalization::None }
    }
}

/// What makes the router's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Router {
    /// One matrix.
    Linear,
    /// An MLP of a narrow state, to which the state of the layer before is added; one more logit means no expert
    /// (zaya).
    Mlp {
        /// `router_hidden_size`.
        hidden_size: usize,
    },
}

/// What the router and the experts read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertInput {
    /// The normed row; the weights are factors of the outputs.
    Normed,
    /// The normed row; the weights are factors of the experts' inputs (llama4).
    Weighted,
    /// The router has its own norm, `scale / sqrt(hidden_size)`, and each expert's weight a learned factor (gemma4).
    OwnNorm,
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
        /// What becomes of the experts of the other groups.
        closed: ClosedGroups,
    },
}

/// What becomes of experts whose group is not among the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedGroups {
    /// They cannot be chosen.
    Excluded,
    /// Their score for the choice is 0, which a correction bias may put above others (axk2).
    ScoreZero,
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
    /// So many experts like the others, which the router scores with those, and which are always chosen (inkling).
    Scored {
        /// `n_shared_experts`.
        count: usize,
    },
    /// Added times sigmoid(shared_expert_gate(x)) (qwen2_moe).
    Gated {
        /// Width of its MLP.
        intermediate_size: usize,
    },
}

//! MLPs and mixtures of experts.

use super::leaf::parts;
use crate::config::{Activation, MlpShape};

parts! {
    /// A layer's MLP.
    pub enum Mlp {
        /// One for all tokens.
        Dense(Box<DenseMlp<L>>),
        /// A mixture of experts.
        Moe(Box<MoeMlp<L>>),
        /// Both, side by side.
        DenseAndMoe(Box<DenseAndMoe<L>>),
        /// Both from the same normed row; the mixture's output is added at the end of the next layer.
        DenseAndMoeForNext(Box<(DenseMlp<L>, MoeMlp<L>)>),
    }

    /// A dense MLP and a mixture of experts that read the same row.
    pub struct DenseAndMoe {
        /// The MLP.
        pub dense: DenseMlp<L>,
        /// The mixture.
        pub moe: MoeMlp<L>,
        /// Norm of the MLP's output.
        pub dense_out_norm: L::Norm,
        /// Norm of the mixture's input.
        pub moe_norm: L::Norm,
        /// Norm of the mixture's output.
        pub moe_out_norm: L::Norm,
    }

    /// down(act(up(x))), or down(act(gate(x)) * up(x)).
    pub struct DenseMlp {
        /// gate_proj and up_proj, interleaved by panels, or up_proj alone.  // [intermediate_size or twice, hidden_size]
        pub gate_up_proj: L::Matrix,
        /// down_proj.  // [hidden_size, intermediate_size]
        pub down_proj: L::Matrix,
        /// Learned parameters of the activation; empty when it has none.
        pub learned: L::Numbers,
        /// Norm of down_proj's input.
        pub sub_norm: Option<L::Norm>,
        ;
        /// Width between the two projections.
        pub intermediate_size: usize,
        /// Whether there is a gate.
        pub shape: MlpShape,
        /// The activation, but for what is learned of it.
        pub stated_activation: Activation,
        /// Gates below mean + this many standard deviations are zero.
        pub gate_cutoff: Option<f32>,
    }

    /// The MLP of a router before its last matrix, in f32.
    pub struct RouterMlpWeights {
        /// To the state.  // [state, hidden_size]
        pub down: L::Matrix,
        /// Factors of the state of the layer before; empty in the first layer.  // [state]
        pub state_scale: L::Numbers,
        /// Norm of the state.
        pub norm: L::Norm,
        /// Two matrices with a GELU behind each.  // [state, state]
        pub layers: [L::Matrix; 2],
    }

    /// A mixture of experts.
    pub struct MoeMlp {
        /// A logit per expert, in f32.  // [num_experts, hidden_size], or of the router's state
        pub router: L::Matrix,
        /// What makes the router's state.
        pub router_mlp: Option<Box<RouterMlpWeights<L>>>,
        /// Added to the scores for the choice only; empty when the model has none.  // [num_experts]
        pub e_score_correction_bias: L::Numbers,
        /// The experts of each token, where the router does not choose.  // [vocab_size, num_experts_per_tok]
        pub tid2eid: Option<L::Integers>,
        /// Norm of the router's input, if it has a separate one.
        pub router_norm: Option<L::Norm>,
        /// A factor of each expert's weight; empty when the model has none.  // [num_experts]
        pub per_expert_scale: L::Numbers,
        /// To the latent of the experts and back, where they work in one.
        pub latent: Option<[L::Matrix; 2]>,
        /// Bias of the sum of all experts; empty when the model has none.  // [hidden_size]
        pub output_bias: L::Numbers,
        /// The experts.
        pub experts: Vec<DenseMlp<L>>,
        /// The expert that every token passes.
        pub shared_expert: Option<DenseMlp<L>>,
        /// The gate of the shared expert.  // [1, hidden_size]
        pub shared_expert_gate: Option<L::Matrix>,
    }

}

impl DenseMlp {
    /// The activation.
    pub fn activation(&self) -> Activation {
        match (self.stated_activation, &self.learned[..]) {
            (Activation::Xielu { .. }, &[alpha_p, alpha_n]) => Activation::xielu(alpha_p, alpha_n),
            (activation, _) => activation,
        }
    }
}

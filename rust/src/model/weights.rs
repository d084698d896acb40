//! The weights of a model, layer by layer.

use crate::compute::weight::Weight;
use crate::config::{Config, LayerSpec};
use crate::quant::PackedType;

/// The parameters of a norm as they are applied: one is added back to weights that files store minus one, and a norm
/// without a weight tensor has ones.
pub struct NormWeights {
    /// The weight.
    pub weight: Vec<f32>,
    /// The bias; zeros without one.
    pub bias: Vec<f32>,
}

/// One decoder layer.
pub struct Layer {
    /// Its place among the layers.
    pub index: usize,
    /// What differs from layer to layer.
    pub spec: LayerSpec,
    /// Norm of the mixer's input.
    pub attention_norm: Option<NormWeights>,
    /// Attention, where the layer has it.
    pub attention: Option<AttentionWeights>,
    /// The recurrent mixer, where the layer has one.
    pub recurrent: Option<Box<RecurrentWeights>>,
    /// Norm of the mixer's output.
    pub attention_out_norm: Option<NormWeights>,
    /// Norm of the MLP's input.
    pub mlp_norm: Option<NormWeights>,
    /// The MLP, where the layer has one.
    pub mlp: Option<Mlp>,
    /// Norm of the MLP's output.
    pub mlp_out_norm: Option<NormWeights>,
}

/// Attention of a layer.
pub struct AttentionWeights {
    /// Its place among the layers with keys and values, in every KV block.
    pub kv_layer: usize,
    /// Queries, keys and values.
    pub projection: Projection,
    /// Norms of q and k, written out for all heads.  // [num_heads * head_dim], [num_kv_heads * head_dim]
    pub qk_norms: Option<[NormWeights; 2]>,
    /// Attention sinks: one score per query head that has no value; empty when the model has none.
    pub sinks: Vec<f32>,
    /// Attention's output.  // [hidden_size, num_heads * v_head_dim]
    pub o_proj: Weight,
}

/// A recurrent mixer.
pub struct RecurrentWeights {
    /// Its place among the layers with a recurrent state.
    pub state_layer: usize,
    /// What the normed row is projected to.
    pub in_proj: Weight,
    /// The depthwise convolution.  // [positions, channels]
    pub conv: Vec<f32>,
    /// Its bias; zeros without one.  // [channels]
    pub conv_bias: Vec<f32>,
    /// -exp(A_log); empty when the mixer has none.  // [heads]
    pub decay_rate: Vec<f32>,
    /// Bias of the step; empty when the mixer has none.  // [heads]
    pub dt_bias: Vec<f32>,
    /// Factor of the value that is added to the output; empty when the mixer has none.  // [heads]
    pub d: Vec<f32>,
    /// Norm of the output.  // [heads * value_dim]
    pub norm: Option<NormWeights>,
    /// The output's projection.
    pub out_proj: Weight,
}

/// How a layer makes queries, keys and values.
pub enum Projection {
    /// q, k and v of all heads, stacked.  // [qkv_width, hidden_size]
    Heads(Weight),
    /// Multi-head latent attention.
    Mla(Box<MlaWeights>),
}

/// Projections of multi-head latent attention, named as in `modeling_deepseek_v3.py`.
pub struct MlaWeights {
    /// q_proj or q_a_proj, stacked on kv_a_proj_with_mqa: q or its latent, the latent of k and v, the rotated part of k.
    pub a_proj: Weight,
    /// q_a_layernorm and q_b_proj, where queries have a latent.
    pub q_b: Option<(NormWeights, Weight)>,
    /// Norm of the latent of k and v.
    pub kv_a_layernorm: NormWeights,
    /// kv_b_proj: the part of k that is not rotated, of all heads; then v of all heads.
    pub kv_b_proj: Weight,
}

/// A layer's MLP.
pub enum Mlp {
    /// One for all tokens.
    Dense(DenseMlp),
    /// A mixture of experts.
    Moe(Box<MoeMlp>),
}

/// down(act(up(x))), or down(act(gate(x)) * up(x)).
pub struct DenseMlp {
    /// gate_proj and up_proj, interleaved by panels, or up_proj alone.  // [intermediate_size or twice, hidden_size]
    pub gate_up_proj: Weight,
    /// down_proj.  // [hidden_size, intermediate_size]
    pub down_proj: Weight,
    /// Width between the two projections.
    pub intermediate_size: usize,
}

/// A mixture of experts.
pub struct MoeMlp {
    /// A logit per expert, in f32.  // [num_experts, hidden_size]
    pub router: Weight,
    /// Added to the scores for the choice only; empty when the model has none.  // [num_experts]
    pub e_score_correction_bias: Vec<f32>,
    /// The experts.
    pub experts: Vec<DenseMlp>,
    /// The expert that every token passes.
    pub shared_expert: Option<DenseMlp>,
    /// The gate of the shared expert.  // [1, hidden_size]
    pub shared_expert_gate: Option<Weight>,
}

impl Projection {
    /// The type of the weights that the normed row is multiplied with.
    pub fn dtype(&self) -> PackedType {
        match self {
            Projection::Heads(weight) => weight.dtype(),
            Projection::Mla(weights) => weights.a_proj.dtype(),
        }
    }

    /// Stride of a row of queries, keys and values.
    pub fn stride(&self, config: &Config) -> usize {
        match self {
            Projection::Heads(weight) => weight.padded_out(),
            Projection::Mla(_) => config.qkv_width(),
        }
    }
}

impl DenseMlp {
    fn weights(&self) -> [&Weight; 2] {
        [&self.gate_up_proj, &self.down_proj]
    }
}

impl Layer {
    /// All matrices.
    pub(super) fn weights(&self) -> Vec<&Weight> {
        let mut all = Vec::new();
        if let Some(attention) = &self.attention {
            all.push(&attention.o_proj);
            match &attention.projection {
                Projection::Heads(weight) => all.push(weight),
                Projection::Mla(weights) => {
                    all.extend([&weights.a_proj, &weights.kv_b_proj]);
                    all.extend(weights.q_b.as_ref().map(|(_, q_b_proj)| q_b_proj));
                }
            }
        }
        if let Some(recurrent) = &self.recurrent {
            all.extend([&recurrent.in_proj, &recurrent.out_proj]);
        }
        match &self.mlp {
            None => {}
            Some(Mlp::Dense(mlp)) => all.extend(mlp.weights()),
            Some(Mlp::Moe(mlp)) => {
                all.push(&mlp.router);
                all.extend(&mlp.shared_expert_gate);
                all.extend(mlp.experts.iter().chain(&mlp.shared_expert).flat_map(DenseMlp::weights));
            }
        }
        all
    }
}

//! Attention of a layer.

use super::leaf::{Leaf, parts};
use crate::config::{Config, Heads, LayerSpec, Values};
use ropechat_kernels::compute::activations::InputType;
use ropechat_kernels::quant::PackedType;

parts! {
    /// How a layer makes queries, keys and values.
    pub enum Projection {
        /// q, k and v of all heads, and the gate of attention's output, stacked.  // [qkv_width, hidden_size]
        Heads(L::Matrix),
        /// Multi-head latent attention.
        Mla(Box<MlaWeights<L>>),
        /// What a mechanism makes them of.  // [what it needs, hidden_size]
        OfMechanism(L::Matrix),
    }

    /// Attention of a layer.
    pub struct AttentionLayer {
        /// Norm of attention's input.
        pub attention_norm: Option<L::Norm>,
        /// Queries, keys and values.
        pub projection: Projection<L>,
        /// Learned scores by distance.
        pub relative_scores: Option<RelativeScoreWeights<L>>,
        /// What all keys have in common, which a cache that rounds leaves out; empty where softmax would see that.
        /// // [num_kv_heads * head_dim]
        pub common_key: L::Numbers,
        /// Norms of q and k, written out for all heads.  // [num_heads * head_dim], [num_kv_heads * head_dim]
        pub qk_norms: Option<[L::Norm; 2]>,
        /// Norm of the values, written out for all heads.
        pub value_norm: Option<L::Norm>,
        /// Norm of o_proj's input.
        pub attention_sub_norm: Option<L::Norm>,
        /// lambda of differential attention, and its part that is not learned; empty when the model has none.  // [2]
        pub lambdas: L::Numbers,
        /// Attention sinks: one score per query head that has no value; empty when the model has none.
        pub sinks: L::Numbers,
        /// From a head's latent to its value (MLA); empty where `o_proj` reads the heads.  // each [v_head_dim, kv_lora_rank]
        pub o_a_proj: Vec<L::Matrix>,
        /// Attention's output, unless it is that of a mechanism.  // [hidden_size, num_heads * v_head_dim]
        pub o_proj: Option<L::Matrix>,
        /// Norm of attention's output.
        pub attention_out_norm: Option<L::Norm>,
        /// How the output is added, where that has learned vectors.
        pub residual_scales: Option<ResidualScales<L>>,
        ;
        /// The layer's place among the layers.
        pub index: usize,
        /// Its place in every KV block: that of another layer, where it shares that one's keys and values.
        pub kv_index: usize,
        /// Numbers and widths of the heads that it computes with ([`Config::cached_heads`]).
        pub heads: Heads,
        /// Heads of a mechanism whose keys are cached behind those.
        pub further_heads: usize,
        /// Values of a mechanism behind a row's queries, keys, values and gates.
        pub columns: usize,
        /// What differs from layer to layer.
        pub spec: LayerSpec,
    }

    /// Projections of multi-head latent attention, named as in `modeling_deepseek_v3.py`.
    pub struct MlaWeights {
        /// q_proj or q_a_proj, stacked on kv_a_proj_with_mqa: q or its latent, the latent of k and v, the rotated part of k.
        pub a_proj: L::Matrix,
        /// q_a_layernorm and q_b_proj, where queries have a latent.
        pub q_b: Option<(L::Norm, L::Matrix)>,
        /// Norm of the latent of k and v.
        pub kv_a_layernorm: L::Norm,
        /// Norm of the rotated part of k.
        pub k_rope_norm: Option<L::Norm>,
        /// From the part of a head's query that is not rotated to the latent of k and v: the head's part of kv_b_proj,
        /// transposed.  // each [kv_lora_rank, qk_nope_head_dim]
        pub q_absorb: Vec<L::Matrix>,
    }

    /// Where a branch is added: x = stream * x + branch * result + bias, by channel.
    pub struct ResidualScales {
        /// Of the result.
        pub branch: L::Numbers,
        /// Of the stream.
        pub stream: L::Numbers,
        /// What both biases give.
        pub bias: L::Numbers,
    }

    /// Learned scores by distance.
    pub struct RelativeScoreWeights {
        /// Scores from the greatest distance to 0.  // [d_rel, extent]
        pub profiles: L::Numbers,
        ;
        /// Distances that have a score.
        pub extent: usize,
    }

}

impl<L: Leaf> Projection<L> {
    /// The matrix that the normed row is multiplied with.
    pub fn input_matrix(&self) -> &L::Matrix {
        match self {
            Projection::Heads(matrix) | Projection::OfMechanism(matrix) => matrix,
            Projection::Mla(parts) => &parts.a_proj,
        }
    }
}

impl Projection {
    /// The type of the weights that the normed row is multiplied with.
    pub fn dtype(&self) -> PackedType {
        self.input_matrix().dtype()
    }

    /// What the normed row is made for.
    pub fn input_type(&self) -> InputType {
        self.input_matrix().input_type()
    }
}

impl AttentionLayer {
    /// Stride of a row of queries, keys and values, and of what comes behind them.
    pub fn stride(&self, config: &Config) -> usize {
        match &self.projection {
            Projection::Heads(weight) => weight.padded_out(),
            Projection::Mla(_) | Projection::OfMechanism(_) => {
                self.qkv_width() + config.attention_gate.rows(config.heads(&self.spec)) + self.columns
            }
        }
    }

    /// Values of a row of queries, and of keys where the layer has its own.
    pub fn qk_width(&self) -> usize {
        if self.spec.shares_kv_of.is_some() { self.heads.q_width() } else { self.heads.qk_width() }
    }

    /// Values of a row of queries, and of keys and values where the layer has its own.
    pub fn qkv_width(&self) -> usize {
        let values_in_keys =
            matches!(self.projection, Projection::Mla(_)) || self.spec.values == Values::OfKeys;
        match values_in_keys || self.spec.shares_kv_of.is_some() {
            true => self.qk_width(),
            false => self.heads.qkv_width(),
        }
    }
}

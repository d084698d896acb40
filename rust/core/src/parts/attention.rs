//! Attention of a layer.

use super::leaf::{Leaf, parts};
use crate::config::{Compression, Config, Heads, Indexer, LayerSpec};
use ropechat_kernels::quant::PackedType;

parts! {
    /// How a layer makes queries, keys and values.
    pub enum Projection {
        /// q, k and v of all heads, and the gate of attention's output, stacked.  // [qkv_width, hidden_size]
        Heads(L::Matrix),
        /// Multi-head latent attention.
        Mla(Box<MlaWeights<L>>),
        /// k and v of all heads; a mechanism makes queries and outputs.  // [kv_width, hidden_size]
        KeysAndValues(L::Matrix),
        /// One key for all heads, which is the value too.
        SharedKv(Box<SharedKvWeights<L>>),
    }

    /// Attention of a layer.
    pub struct AttentionLayer {
        /// Norm of attention's input.
        pub attention_norm: Option<L::Norm>,
        /// Queries, keys and values.
        pub projection: Projection<L>,
        /// What makes compressed keys, where the layer reads them.
        pub compression: Option<Box<CompressionWeights<L>>>,
        /// What chooses the positions that are read, where the layer has it.
        pub indexer: Option<IndexerWeights<L>>,
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
        /// From the output of each group of heads to its latent, or from a head's latent to its value (MLA); empty where
        /// `o_proj` reads the heads.
        /// // each [o_lora_rank, num_heads * v_head_dim / o_groups], or [v_head_dim, kv_lora_rank]
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
        /// What differs from layer to layer.
        pub spec: LayerSpec,
    }

    /// The projections of attention whose one key is the value too.
    pub struct SharedKvWeights {
        /// The inputs of compressed keys (projections, then gates, of attention and of its indexer), the latent of queries,
        /// the key, and the weights of the indexer's heads.
        pub a_proj: L::Matrix,
        /// Norm of the latent.
        pub q_a_layernorm: L::Norm,
        /// Queries from it.  // [num_heads * head_dim, q_lora_rank]
        pub q_b_proj: L::Matrix,
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

    /// An indexer's parameters without the matrices that are part of the layer's projection: those of its key and of its
    /// heads' weights, and of its queries if they do not come from a latent.
    pub struct IndexerWeights {
        /// Queries from their latent.  // [index_n_heads * index_head_dim, q_lora_rank]
        pub q_proj: Option<L::Matrix>,
        /// Norm of a query.
        pub q_norm: Option<L::Norm>,
        /// Norm of the key.
        pub k_norm: L::Norm,
        ;
        /// What it is.
        pub spec: Indexer,
    }

    /// The parameters of compressed keys, without the projections.
    pub struct CompressionWeights {
        /// Added to the gates of attention, and of its indexer.  // each [compress_rate, series * width of a key]
        pub position_biases: Vec<L::Numbers>,
        /// Norm of a key; an indexer's keys have that of the indexer.  // [head_dim]
        pub norm: L::Norm,
        ;
        /// What it is.
        pub spec: Compression,
        /// The layer's place among the layers with a recurrent state.
        pub state_layer: usize,
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
            Projection::Heads(matrix) | Projection::KeysAndValues(matrix) => matrix,
            Projection::Mla(parts) => &parts.a_proj,
            Projection::SharedKv(parts) => &parts.a_proj,
        }
    }
}

impl Projection {
    /// The type of the weights that the normed row is multiplied with.
    pub fn dtype(&self) -> PackedType {
        self.input_matrix().dtype()
    }

    /// Stride of a row of queries, keys and values.
    pub fn stride(&self, config: &Config, layer: &AttentionLayer) -> usize {
        match self {
            Projection::Heads(weight) => weight.padded_out(),
            Projection::Mla(_) | Projection::KeysAndValues(_) | Projection::SharedKv(_) => {
                let indexer = layer.indexer.as_ref().map_or(0, |indexer| indexer.spec.width());
                layer.qkv_width() + config.attention_gate.rows(config.heads(&layer.spec)) + indexer
            }
        }
    }
}

impl AttentionLayer {
    /// Values of a row of queries, and of keys where the layer has its own.
    pub fn qk_width(&self) -> usize {
        if self.spec.shares_kv_of.is_some() { self.heads.q_width() } else { self.heads.qk_width() }
    }

    /// Values of a row of queries, and of keys and values where the layer has its own.
    pub fn qkv_width(&self) -> usize {
        match (&self.projection, self.spec.shares_kv_of) {
            (Projection::Mla(_) | Projection::SharedKv(_), _) | (_, Some(_)) => self.qk_width(),
            _ => self.heads.qkv_width(),
        }
    }
}

//! What a model is loaded from: for each of its matrices and vectors, which rows of which stored tensors it takes.

use super::rows::TensorRows;
use crate::config::MlpShape;
use crate::parts::{Visit, parts};

/// A matrix of the model.
#[derive(Debug, Clone)]
pub struct MatrixSpec {
    /// Its rows, in order.
    pub weights: Vec<TensorRows>,
    /// Their biases, one entry per entry of `weights`; empty when the matrix has no bias.
    pub biases: Vec<TensorRows>,
    /// Values per row.
    pub in_features: usize,
    /// How the entries become one weight.
    pub join: Join,
}

/// How several tensors become one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// One after the other.
    Stacked,
    /// Alternating rows of two: gate and up.
    Interleaved,
}

/// A norm of the model.
#[derive(Debug, Clone)]
pub struct NormSpec {
    /// The weight; empty when the model has none, which means ones.
    pub weight: Vec<TensorRows>,
    /// The bias; empty when the model has none.
    pub bias: Vec<TensorRows>,
    /// Length of the weight and of the bias.
    pub width: usize,
    /// Down and up projection of a gate of the normed row; empty when it has none.
    pub gate: Vec<TensorRows>,
}

/// The tensors of a layer's MLP.
#[derive(Debug, Clone)]
pub enum MlpTensors {
    /// One MLP for all tokens.
    Dense(DenseTensors),
    /// A mixture of experts.
    Moe(MoeTensors),
    /// Both; norms after the MLP, before the mixture and after it.
    DenseAndMoe(DenseTensors, MoeTensors, Box<[NormSpec; 3]>),
    /// Both, of which the mixture's output waits for the next layer.
    DenseAndMoeForNext(DenseTensors, MoeTensors),
}

/// How a layer projects queries, keys and values.
#[derive(Debug, Clone)]
pub enum QkvTensors {
    /// One matrix for q, k and v of all heads.
    Heads(MatrixSpec),
    /// Multi-head latent attention.
    Mla(Box<MlaTensors>),
    /// A mixture of attention heads.
    Experts(Box<HeadExpertsTensors>),
    /// One key for all heads, which is the value too.
    SharedKv(Box<SharedKvTensors>),
}

/// The tensors of a hyper-connection.
#[derive(Debug, Clone)]
pub enum HyperTensors {
    /// A weight per stream.
    Sigmoid {
        /// From all streams to the logits of the weights.
        matrix: TensorRows,
        /// Added to them.
        base: TensorRows,
        /// Factors of them, one for each kind of weights.
        scale: TensorRows,
    },
    /// A weight per channel of what is read.
    LowRank {
        /// Norm of each stream.
        norm: NormSpec,
        /// To the low rank, then to the weights of what is written.
        down: MatrixSpec,
        /// From the low rank to the weights of what is read.
        up: MatrixSpec,
    },
}

parts! { TensorRows;

/// The tensors of one MLP.
#[derive(Debug, Clone)]
pub struct DenseTensors {
    /// gate_proj and up_proj, or up_proj alone.
    pub gate_up_proj: MatrixSpec,
    /// down_proj.
    pub down_proj: MatrixSpec,
    /// Learned parameters of the activation; empty when it has none.
    pub activation: Vec<TensorRows>,
    /// Norm of down_proj's input.
    pub sub_norm: Option<NormSpec>,
    ;
    /// Whether there is a gate.
    pub shape: MlpShape,
}

/// The MLP of a router before its last matrix.
#[derive(Debug, Clone)]
pub struct RouterMlpTensors {
    /// To the narrow state.
    pub down: MatrixSpec,
    /// Factors of the state of the layer before; empty in the first layer.
    pub state_scale: Vec<TensorRows>,
    /// Norm of the state.
    pub norm: NormSpec,
    /// Two matrices with a GELU behind each.
    pub layers: [MatrixSpec; 2],
}

/// The tensors of a mixture of experts.
#[derive(Debug, Clone)]
pub struct MoeTensors {
    /// The router, or its last matrix.
    pub router: MatrixSpec,
    /// What comes before that.
    pub router_mlp: Option<RouterMlpTensors>,
    /// `e_score_correction_bias`; empty when the model has none.
    pub e_score_correction_bias: Vec<TensorRows>,
    /// The experts of each token, integers; empty where the router chooses.
    pub tid2eid: Vec<TensorRows>,
    /// Norm of the router's input, if it has a separate one.
    pub router_norm: Option<NormSpec>,
    /// A factor of each expert's weight; empty when the model has none.
    pub per_expert_scale: Vec<TensorRows>,
    /// To the latent of the experts and back, where they work in one.
    pub latent: Option<[MatrixSpec; 2]>,
    /// Bias of the sum of all experts; empty when the model has none.
    pub output_bias: Vec<TensorRows>,
    /// The experts, in order.
    pub experts: Vec<DenseTensors>,
    /// The expert that every token passes, and its gate.
    pub shared_expert: Option<(DenseTensors, Option<MatrixSpec>)>,
}

/// The projections of attention whose one key is the value too.
#[derive(Debug, Clone)]
pub struct SharedKvTensors {
    /// The inputs of compressed keys, the latent of queries, the key, and the weights of an indexer's heads.
    pub a_proj: MatrixSpec,
    /// Norm of the latent.
    pub q_a_layernorm: NormSpec,
    /// Queries from it.
    pub q_b_proj: MatrixSpec,
}

/// The tensors of compressed keys that are no part of a projection of the row.
#[derive(Debug, Clone)]
pub struct CompressionTensors {
    /// Added to the gates by place in the window; the second one is an indexer's.
    pub position_biases: Vec<TensorRows>,
    /// Norm of a key; an indexer's keys have that of the indexer.
    pub norm: NormSpec,
}

/// The tensors of a mixture of attention heads, without the output projections.
#[derive(Debug, Clone)]
pub struct HeadExpertsTensors {
    /// Keys and values.
    pub kv_proj: MatrixSpec,
    /// The router.
    pub router: MatrixSpec,
    /// Queries of each expert.
    pub queries: Vec<MatrixSpec>,
    /// Bias of the sum of all outputs.
    pub bias: TensorRows,
}

/// The tensors of multi-head latent attention.
#[derive(Debug, Clone)]
pub struct MlaTensors {
    /// q_proj or q_a_proj, then kv_a_proj_with_mqa.
    pub a_proj: MatrixSpec,
    /// q_a_layernorm and q_b_proj, where queries have a latent.
    pub q_b: Option<(NormSpec, MatrixSpec)>,
    /// Norm of the latent of keys and values.
    pub kv_a_layernorm: NormSpec,
    /// Norm of the rotated part of the keys.
    pub k_rope_norm: Option<NormSpec>,
    /// From the part of each head's query that is not rotated to the latent of keys and values.
    pub q_absorb: Vec<MatrixSpec>,
}

/// The tensors of an indexer that are not part of the layer's projection.
#[derive(Debug, Clone)]
pub struct IndexerTensors {
    /// Queries from their latent.
    pub q_proj: Option<MatrixSpec>,
    /// Norm of a query.
    pub q_norm: Option<NormSpec>,
    /// Norm of the key.
    pub k_norm: NormSpec,
}

/// What makes the numbers of keys in dynamic mask attention.
#[derive(Debug, Clone)]
pub struct DynamicMaskTensors {
    /// A, a number per key/value head.
    pub a: TensorRows,
    /// From the values of all heads to dt of each.
    pub dt_proj: TensorRows,
    /// Its bias; empty when the model has none.
    pub dt_bias: Vec<TensorRows>,
}

/// Convolutions of a layer's branches, each [channels, 1, positions].
#[derive(Debug, Clone)]
pub struct BranchConvolutionTensors {
    /// Of keys, and of values.
    pub kv: [TensorRows; 2],
    /// Of what attention adds.
    pub attention: TensorRows,
    /// Of what the MLP adds.
    pub mlp: TensorRows,
    /// Factor of what the MLP gives.
    pub mlp_scale: TensorRows,
}

/// The convolutions of queries and keys.
#[derive(Debug, Clone)]
pub struct QkConvolutionTensors {
    /// A filter per channel.
    pub depthwise: TensorRows,
    /// Its bias.
    pub depthwise_bias: TensorRows,
    /// Per head: a matrix of [head_dim, head_dim * positions] and its bias.
    pub grouped: Vec<MatrixSpec>,
}

/// The tensors of attention.
#[derive(Debug, Clone)]
pub struct AttentionTensors {
    /// Queries, keys and values.
    pub projection: QkvTensors,
    /// Compressed keys, where the layer reads them.
    pub compression: Option<CompressionTensors>,
    /// The indexer, where the layer has one.
    pub indexer: Option<IndexerTensors>,
    /// Profiles of scores by distance, [d_rel, distances]; empty when the model has none.
    pub relative_scores: Vec<TensorRows>,
    /// What makes the numbers of keys, where they are added to scores.
    pub dynamic_mask: Option<DynamicMaskTensors>,
    /// Convolutions of queries and keys.
    pub convolution: Option<QkConvolutionTensors>,
    /// Norms of q and k.
    pub qk_norms: Option<[NormSpec; 2]>,
    /// Norm of the values.
    pub value_norm: Option<NormSpec>,
    /// Norm of o_proj's input.
    pub attention_sub_norm: Option<NormSpec>,
    /// The four vectors of differential attention: q1, k1, q2, k2; empty when the model has none.
    pub lambdas: Vec<TensorRows>,
    /// Attention sinks, one score per query head; empty when the model has none.
    pub sinks: Vec<TensorRows>,
    /// From the output of each group of heads to its latent, or from a head's latent to its value; empty where the projection
    /// reads the heads.
    pub o_a_proj: Vec<MatrixSpec>,
    /// Attention's output projection; of a mixture of heads one per expert.
    pub o_proj: Vec<MatrixSpec>,
}

/// The tensors of a recurrent mixer.
#[derive(Debug, Clone)]
pub struct RecurrentTensors {
    /// What the normed row is projected to.
    pub in_proj: MatrixSpec,
    /// The depthwise convolution, a row of positions per channel; empty where there is none.
    pub conv: Vec<TensorRows>,
    /// Its bias; empty when the model has none.
    pub conv_bias: Vec<TensorRows>,
    /// The inputs of the decay rates, per head or channel; empty when the mixer has none.
    pub a_log: Vec<TensorRows>,
    /// Bias of the step, per head or channel; empty when the mixer has none.
    pub dt_bias: Vec<TensorRows>,
    /// Factor of the value that is added to the output, per head or channel; empty when the mixer has none.
    pub d: Vec<TensorRows>,
    /// Norm of the output, written out for all heads.
    pub norm: Option<NormSpec>,
    /// Matrices between the two projections.
    pub inner_proj: Vec<MatrixSpec>,
    /// Norms of what the first of them gives.
    pub inner_norms: Vec<NormSpec>,
    /// The output's projection.
    pub out_proj: MatrixSpec,
}

/// A correction of low rank to a matrix: down, then up to each of the matrix's parts.
#[derive(Debug, Clone)]
pub struct AdapterTensors {
    /// To the latents of all parts.
    pub down: MatrixSpec,
    /// From the latent of each part.
    pub ups: Vec<MatrixSpec>,
}

/// The tensors of a shared block, without its attention.
#[derive(Debug, Clone)]
pub struct SharedBlockTensors {
    /// Norm of the stream concatenated with the embedding.
    pub norm: NormSpec,
    /// Correction of the queries, keys and values of this layer.
    pub attention_adapter: Option<AdapterTensors>,
    /// Norm of the MLP's input.
    pub mlp_norm: NormSpec,
    /// The MLP.
    pub mlp: DenseTensors,
    /// Correction of the MLP's first projections in this layer.
    pub mlp_adapter: AdapterTensors,
    /// From the block's output to what is added.
    pub linear: MatrixSpec,
}

/// A layer's tensors.
#[derive(Debug, Clone)]
pub struct LayerTensors {
    /// Norms before and after the mixer, before and after the MLP.
    pub norms: [Option<NormSpec>; 4],
    /// Attention, where the layer has it.
    pub attention: Option<AttentionTensors>,
    /// The recurrent mixer, where the layer has one.
    pub recurrent: Option<RecurrentTensors>,
    /// Convolutions of its branches.
    pub branch_convolutions: Option<Box<BranchConvolutionTensors>>,
    /// The rest of a shared block, where the layer's attention is in one.
    pub shared_block: Option<Box<SharedBlockTensors>>,
    /// The MLP, where the layer has one.
    pub mlp: Option<MlpTensors>,
    /// Its part of the second embedding: gate, projection, norm of what is added.
    pub per_layer_input: Option<(MatrixSpec, MatrixSpec, NormSpec)>,
    /// What it needs of several residual streams.
    pub alt_up: Option<Box<AltUpTensors>>,
    /// Its hyper-connections: of attention, and of the MLP.
    pub hyper: Option<Box<[HyperTensors; 2]>>,
    /// Its embedding of n-grams.
    pub ngram: Option<Box<NgramTensors>>,
    /// Factor of its output; empty when the model has none.
    pub scalar: Vec<TensorRows>,
    /// Where attention and the MLP are added: scale and bias of the branch, then of the stream, or the scale of the
    /// stream alone; empty when the model has none.
    pub residual_scales: [Vec<TensorRows>; 2],
}

/// The tensors of multi-token prediction.
#[derive(Debug, Clone)]
pub struct MtpTensors {
    /// Norm of the next token's embedding.
    pub embedding_norm: NormSpec,
    /// Norm of the model's hidden state.
    pub hidden_norm: NormSpec,
    /// From both to the layer's input.
    pub fc: MatrixSpec,
    /// The layer.
    pub layer: LayerTensors,
    /// Norm after it.
    pub norm: NormSpec,
}

/// The tensors of a layer's embedding of n-grams.
#[derive(Debug, Clone)]
pub struct NgramTensors {
    /// The rows that hashes choose.
    pub table: MatrixSpec,
    /// From them to a key per stream, then to a value.
    pub key_value_proj: MatrixSpec,
    /// Norms of the keys, of the streams, and of what the convolution reads.
    pub norms: [NormSpec; 3],
    /// The depthwise convolution.
    pub conv: TensorRows,
}

/// The tensors of AltUp and LAuReL in a layer.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // fields with the names of their tensors
pub struct AltUpTensors {
    pub router_norm: NormSpec,
    pub modality_router: TensorRows,
    pub prediction_coefs: TensorRows,
    pub correction_coefs: TensorRows,
    pub correct_output_scale: TensorRows,
    pub laurel_left: MatrixSpec,
    pub laurel_right: MatrixSpec,
    pub laurel_norm: NormSpec,
}

/// The tensors of a second embedding.
#[derive(Debug, Clone)]
pub struct PerLayerTensors {
    /// The embedding.
    pub embed_tokens: MatrixSpec,
    /// From the first embedding.
    pub model_projection: MatrixSpec,
    /// Norm of that.
    pub projection_norm: NormSpec,
}

/// The tensors outside the layers.
#[derive(Debug, Clone)]
pub struct ModelTensors {
    /// Token embedding.
    pub embed_tokens: MatrixSpec,
    /// Norm of the embedding.
    pub embedding_norm: Option<NormSpec>,
    /// Scale and bias of the embedding; empty when the model has none.
    pub embedding_scales: Vec<TensorRows>,
    /// A second embedding.
    pub per_layer: Option<PerLayerTensors>,
    /// From the first residual stream to the others, and back.
    pub streams: [Vec<MatrixSpec>; 2],
    /// Learned positions; empty when the model has none.
    pub positions: Vec<TensorRows>,
    /// The first state of the low one of two stacks; empty where there is one stack.
    pub low_state: Vec<TensorRows>,
    /// The hyper-connection after the last layer.
    pub hyper_head: Option<HyperTensors>,
    /// The norm after the last layer.
    pub norm: Option<NormSpec>,
    /// A matrix and a norm before the projection to logits.
    pub head_transform: Option<(MatrixSpec, NormSpec)>,
    /// The bias of the projection to logits where that is the embedding; empty when it has none.
    pub tied_bias: Vec<TensorRows>,
    /// The projection to logits, unless it is the embedding.
    pub lm_head: Option<MatrixSpec>,
}

}

impl MatrixSpec {
    /// A name built from the matrix's tensors and rows: no two matrices of a model have the same.
    pub fn name(&self) -> String {
        let source = |source: &TensorRows| {
            let of = source.transposed.as_deref().map_or_else(String::new, |rows| format!(" of {rows:?}"));
            format!("{} {:?} {:?}{of}", source.name, source.stored, source.rows)
        };
        let sources: Vec<String> = self.weights.iter().map(source).collect();
        format!("{:?} {}", self.join, sources.join(" + "))
    }

    /// The same with alternating rows.
    pub(super) fn interleaved(self) -> Self {
        Self { join: Join::Interleaved, ..self }
    }
}

impl Visit<TensorRows> for TensorRows {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a TensorRows)) {
        if !self.is_zeros() {
            each(self);
        }
    }
}

impl Visit<TensorRows> for MatrixSpec {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a TensorRows)) {
        self.weights.visit(each);
        self.biases.visit(each);
    }
}

impl Visit<TensorRows> for NormSpec {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a TensorRows)) {
        [&self.weight, &self.bias, &self.gate].into_iter().for_each(|rows| rows.visit(each));
    }
}

impl Visit<TensorRows> for HyperTensors {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a TensorRows)) {
        match self {
            HyperTensors::Sigmoid { matrix, base, scale } => {
                [matrix, base, scale].into_iter().for_each(|rows| rows.visit(each));
            }
            HyperTensors::LowRank { norm, down, up } => {
                norm.visit(each);
                [down, up].into_iter().for_each(|matrix| matrix.visit(each));
            }
        }
    }
}

impl Visit<TensorRows> for QkvTensors {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a TensorRows)) {
        match self {
            QkvTensors::Heads(matrix) => matrix.visit(each),
            QkvTensors::Mla(mla) => mla.visit(each),
            QkvTensors::Experts(experts) => experts.visit(each),
            QkvTensors::SharedKv(shared) => shared.visit(each),
        }
    }
}

impl Visit<TensorRows> for MlpTensors {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a TensorRows)) {
        match self {
            MlpTensors::Dense(mlp) => mlp.visit(each),
            MlpTensors::Moe(moe) => moe.visit(each),
            MlpTensors::DenseAndMoeForNext(mlp, moe) => {
                mlp.visit(each);
                moe.visit(each);
            }
            MlpTensors::DenseAndMoe(mlp, moe, norms) => {
                mlp.visit(each);
                moe.visit(each);
                norms.visit(each);
            }
        }
    }
}

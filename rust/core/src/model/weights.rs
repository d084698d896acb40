//! The weights of a model, layer by layer.

use crate::config::{Activation, Compression, Config, Heads, Indexer, LayerSpec, MlpShape, ResidualFactors};
use crate::parts::{Visit, parts};
use ropechat_kernels::compute::weight::Weight;
use ropechat_kernels::quant::PackedType;

/// The parameters of a norm as they are applied: one is added back to weights that files store minus one, and a norm
/// without a weight tensor has ones.
#[derive(Clone)]
pub struct NormWeights {
    /// The weight.
    pub weight: Vec<f32>,
    /// The bias; zeros without one.
    pub bias: Vec<f32>,
    /// A gate of the normed row.
    pub gate: Option<Box<NormGate>>,
}

/// A gate of a normed row: y * sigmoid(up(silu(down(y)))) (axk2).
#[derive(Clone)]
pub struct NormGate {
    /// [rank, n]
    pub down: Vec<f32>,
    /// [n, rank]
    pub up: Vec<f32>,
}

/// One decoder layer.
#[derive(Clone)]
pub struct Layer {
    /// Its place among the layers.
    pub index: usize,
    /// What differs from layer to layer.
    pub spec: LayerSpec,
    /// Norms of the stream itself, before the mixer and before the MLP.
    pub stream_norms: [Option<NormWeights>; 2],
    /// Attention, where the layer has it.
    pub attention: Option<AttentionLayer>,
    /// The recurrent mixer, where the layer has one.
    pub recurrent: Option<Box<RecurrentWeights>>,
    /// The rest of a shared block, where the layer's attention is in one.
    pub shared_block: Option<Box<SharedBlockWeights>>,
    /// Norm of the MLP's input.
    pub mlp_norm: Option<NormWeights>,
    /// The MLP, where the layer has one.
    pub mlp: Option<Mlp>,
    /// Norm of the MLP's output.
    pub mlp_out_norm: Option<NormWeights>,
    /// Convolution of the MLP's output.
    pub mlp_convolution: Option<ShortConvolution>,
    /// Its part of the second embedding.
    pub per_layer_input: Option<PerLayerInput>,
    /// What it needs of several residual streams.
    pub alt_up: Option<Box<AltUpLayer>>,
    /// Its hyper-connections: of attention, and of the MLP.
    pub hyper: Option<Box<[HyperWeights; 2]>>,
    /// Its embedding of n-grams.
    pub ngram: Option<Box<NgramWeights>>,
    /// Factor of its output.
    pub scalar: f32,
    /// How the MLP's output is added, where that has learned vectors.
    pub mlp_residual_scales: Option<ResidualScales>,
}

/// A causal convolution per channel over the last positions.
#[derive(Clone)]
pub struct ShortConvolution {
    /// The layer's place among the layers with a recurrent state.
    pub state_layer: usize,
    /// Where its inputs are in that state.
    pub state_start: usize,
    /// The number of channels that it convolves.
    pub channels: usize,
    /// What the convolution reads is added to its result: one is added to the last weights.  // [positions, channels]
    pub weight: Vec<f32>,
}

/// Learned scores by distance.
#[derive(Clone)]
pub struct RelativeScoreWeights {
    /// Distances that have a score.
    pub extent: usize,
    /// Scores from the greatest distance to 0.  // [d_rel, extent]
    pub profiles: Vec<f32>,
}

/// Where a branch is added: x = stream * x + branch * result + bias, by channel.
#[derive(Clone)]
pub struct ResidualScales {
    /// Of the result.
    pub branch: Vec<f32>,
    /// Of the stream.
    pub stream: Vec<f32>,
    /// What both biases give.
    pub bias: Vec<f32>,
}

/// A correction of low rank to a matrix: product += up(down(x)), part by part.
#[derive(Clone)]
pub struct Adapter {
    /// To the latents of all parts.
    pub down: Weight,
    /// Columns of the product that a part has, and what is added there from its latent.
    pub ups: Vec<(usize, Weight)>,
    /// Width of a latent.
    pub rank: usize,
}

/// A block of attention and an MLP that layers share, without its attention.
#[derive(Clone)]
pub struct SharedBlockWeights {
    /// Whether no earlier layer has the same weights.
    pub is_first: bool,
    /// Norm of the stream concatenated with the embedding.  // [2 * hidden_size]
    pub norm: NormWeights,
    /// Correction of the queries, keys and values.
    pub attention_adapter: Option<Adapter>,
    /// Norm of the MLP's input.
    pub mlp_norm: NormWeights,
    /// The MLP.
    pub mlp: DenseMlp,
    /// Correction of its first projections.
    pub mlp_adapter: Adapter,
    /// From the block's output to what is added.
    pub linear: Weight,
}

/// A hyper-connection.
#[derive(Clone)]
pub enum HyperWeights {
    /// A weight per stream.
    Sigmoid {
        /// From all streams to the logits of the weights.  // [kinds * hc_mult, hc_mult * hidden_size]
        matrix: Vec<f32>,
        /// Added to them.  // [kinds * hc_mult]
        base: Vec<f32>,
        /// Factors of them: of the weights with which streams are read, and with which they are written.  // [kinds]
        scale: Vec<f32>,
    },
    /// A weight per channel of what is read.
    LowRank {
        /// Norm of each stream.  // [hc_mult * hidden_size]
        norm: NormWeights,
        /// To the low rank, then to the weights with which streams are written.  // [hc_lowrank + hc_mult, all streams]
        down: Weight,
        /// From the low rank to the weights with which they are read.  // [all streams, hc_lowrank]
        up: Weight,
    },
}

/// How a layer makes queries, keys and values.
#[derive(Clone)]
pub enum Projection {
    /// q, k and v of all heads, and the gate of attention's output, stacked.  // [qkv_width, hidden_size]
    Heads(Weight),
    /// Multi-head latent attention.
    Mla(Box<MlaWeights>),
    /// A mixture of attention heads.
    Experts(Box<HeadExpertsWeights>),
    /// One key for all heads, which is the value too.
    SharedKv(Box<SharedKvWeights>),
}

/// The parameters of compressed keys, without the projections.
#[derive(Clone)]
pub struct CompressionWeights {
    /// What it is.
    pub spec: Compression,
    /// The layer's place among the layers with a recurrent state.
    pub state_layer: usize,
    /// Added to the gates of attention, and of its indexer.  // each [compress_rate, series * width of a key]
    pub position_biases: Vec<Vec<f32>>,
    /// Norm of a key.  // [head_dim]
    pub norm: NormWeights,
}

/// What makes the number of a key in dynamic mask attention: exp(A softplus(dt_proj(v))).
#[derive(Clone)]
pub struct DynamicMaskWeights {
    /// [num_kv_heads]
    pub a: Vec<f32>,
    /// [num_kv_heads, values of all heads]
    pub dt_proj: Vec<f32>,
    /// Zeros without one.  // [num_kv_heads]
    pub dt_bias: Vec<f32>,
}

/// A layer's MLP.
#[derive(Clone)]
pub enum Mlp {
    /// One for all tokens.
    Dense(Box<DenseMlp>),
    /// A mixture of experts.
    Moe(Box<MoeMlp>),
    /// Both, side by side.
    DenseAndMoe(Box<DenseAndMoe>),
    /// Both from the same normed row; the mixture's output is added at the end of the next layer.
    DenseAndMoeForNext(Box<(DenseMlp, MoeMlp)>),
}

parts! { Weight;

/// What the layer for multi-token prediction reads: fc([norm(embedding), norm(hidden state)]).
pub struct HiddenInput {
    /// From both to the layer's input.  // [hidden_size, 2 * hidden_size]
    pub fc: Weight,
    ;
    /// Norm of the embedding.
    pub embedding_norm: NormWeights,
    /// Norm of the hidden state.
    pub hidden_norm: NormWeights,
}

/// Convolutions of queries and keys.
#[derive(Clone)]
pub struct QkConvolutionWeights {
    /// Per head.  // each [head_dim, head_dim * positions]
    pub grouped: Vec<Weight>,
    ;
    /// The layer's place among the layers with a recurrent state.
    pub state_layer: usize,
    /// Per channel.  // [positions, channels]
    pub depthwise: Vec<f32>,
    /// Its bias.  // [channels]
    pub depthwise_bias: Vec<f32>,
    /// The delayed values of the first position, which has none before it: their bias.  // [values / 2]
    pub first_values: Vec<f32>,
}

/// Attention of a layer.
#[derive(Clone)]
pub struct AttentionLayer {
    /// Queries, keys and values.
    pub projection: Projection,
    /// What chooses the positions that are read, where the layer has it.
    pub indexer: Option<IndexerWeights>,
    /// Convolutions of q and k.
    pub convolution: Option<QkConvolutionWeights>,
    /// From the output of each group of heads to its latent, or from a head's latent to its value (MLA); empty where `o_proj`
    /// reads the heads.  // each [o_lora_rank, num_heads * v_head_dim / o_groups], or [v_head_dim, kv_lora_rank]
    pub o_a_proj: Vec<Weight>,
    /// Attention's output.  // [hidden_size, num_heads * v_head_dim]; of a mixture of heads [hidden_size, width] per expert
    pub o_proj: Vec<Weight>,
    ;
    /// The layer's place among the layers.
    pub index: usize,
    /// Its place in every KV block: that of another layer, where it shares that one's keys and values.
    pub kv_index: usize,
    /// Numbers and widths of the heads that it computes with ([`Config::cached_heads`]).
    pub heads: Heads,
    /// What differs from layer to layer.
    pub spec: LayerSpec,
    /// Norm of attention's input.
    pub attention_norm: Option<NormWeights>,
    /// What makes compressed keys, where the layer reads them.
    pub compression: Option<Box<CompressionWeights>>,
    /// Learned scores by distance.
    pub relative_scores: Option<RelativeScoreWeights>,
    /// What all keys have in common, which a cache that rounds leaves out; empty where softmax would see that.  // [num_kv_heads *
    /// head_dim]
    pub common_key: Vec<f32>,
    /// Convolution of k and v, and of attention's output.
    pub branch_convolutions: Option<Box<[ShortConvolution; 2]>>,
    /// Norms of q and k, written out for all heads.  // [num_heads * head_dim], [num_kv_heads * head_dim]
    pub qk_norms: Option<[NormWeights; 2]>,
    /// Norm of the values, written out for all heads.
    pub value_norm: Option<NormWeights>,
    /// Norm of o_proj's input.
    pub attention_sub_norm: Option<NormWeights>,
    /// lambda of differential attention, and its part that is not learned.
    pub lambdas: Option<[f32; 2]>,
    /// Attention sinks: one score per query head that has no value; empty when the model has none.
    pub sinks: Vec<f32>,
    /// What makes the numbers of keys that are added to scores.
    pub dynamic_mask: Option<DynamicMaskWeights>,
    /// Norm of attention's output.
    pub attention_out_norm: Option<NormWeights>,
    /// How the output is added, where that has learned vectors.
    pub residual_scales: Option<ResidualScales>,
}

/// The recurrent mixer of a layer.
#[derive(Clone)]
pub struct RecurrentWeights {
    /// What the normed row is projected to.
    pub in_proj: Weight,
    /// Matrices between the two projections; of RG-LRU one per head.
    pub inner_proj: Vec<Weight>,
    /// The output's projection.
    pub out_proj: Weight,
    ;
    /// Its place among the layers with a recurrent state.
    pub state_layer: usize,
    /// Norm of its input.
    pub input_norm: Option<NormWeights>,
    /// The depthwise convolution.  // [positions, channels]
    pub conv: Vec<f32>,
    /// Its bias; zeros without one.  // [channels]
    pub conv_bias: Vec<f32>,
    /// -exp(A_log), or another rate at which the state decays; empty when the mixer has none.
    ///
    /// // [heads]; of lightning attention whose file stores them: its slopes [heads], its decays of queries and keys
    /// [heads, block] each, and of both in a block [heads, block, block]; of a selective scan [panels of 16 channels][state_size][16]; of RG-LRU [channels]
    pub decay_rate: Vec<f32>,
    /// Bias of the step; empty when the mixer has none.  // [heads] or [keys of all heads]
    pub dt_bias: Vec<f32>,
    /// Factor of the value that is added to the output; empty when the mixer has none.  // [heads] or [channels]
    pub d: Vec<f32>,
    /// Norm of the output of linear attention.  // [heads * value_dim]
    pub norm: Option<NormWeights>,
    /// Norms of what the first of them gives.
    pub inner_norms: Vec<NormWeights>,
    /// Norm of the mixer's output.
    pub out_norm: Option<NormWeights>,
    /// Factors with which the output is added.
    pub factors: ResidualFactors,
}

/// How a layer predicts and corrects several residual streams, and its low-rank branch parallel to attention.
#[derive(Clone)]
pub struct AltUpLayer {
    /// [laurel_rank, hidden_size]
    pub laurel_left: Weight,
    /// [hidden_size, laurel_rank]
    pub laurel_right: Weight,
    ;
    /// Norm of the router's input, with the router's factor.
    pub router_norm: NormWeights,
    /// [num_inputs, hidden_size]
    pub modality_router: Vec<f32>,
    /// [num_inputs * num_inputs, num_inputs]
    pub prediction_coefs: Vec<f32>,
    /// [num_inputs, num_inputs]
    pub correction_coefs: Vec<f32>,
    /// [hidden_size]
    pub correct_output_scale: Vec<f32>,
    /// Norm of what the branch adds.
    pub laurel_norm: NormWeights,
    /// Its width.
    pub laurel_rank: usize,
}

/// A layer's embedding of n-grams.
#[derive(Clone)]
pub struct NgramWeights {
    /// The rows that hashes choose.  // [rows, row_width]
    pub table: Weight,
    /// From them to a key per stream, then to a value.  // [(hc_mult + 1) * hidden_size, ple_embed_dim]
    pub key_value_proj: Weight,
    ;
    /// Its place among the parts of the recurrent state.
    pub state_layer: usize,
    /// Its place among the layers with such an embedding.
    pub table_index: usize,
    /// Norms of the keys, of the streams, and of what the convolution reads.  // [hc_mult * hidden_size] each
    pub norms: [NormWeights; 3],
    /// The depthwise convolution.  // [positions, hc_mult * hidden_size]
    pub conv: Vec<f32>,
}

/// How a layer adds its part of the second embedding.
#[derive(Clone)]
pub struct PerLayerInput {
    /// The gate.  // [width, hidden_size]
    pub gate: Weight,
    /// Back to the stream.  // [hidden_size, width]
    pub projection: Weight,
    ;
    /// Norm of what is added.
    pub out_norm: NormWeights,
}

/// The second embedding.
pub struct PerLayerEmbedding {
    /// A row per token, a part of it for each layer.  // [vocab_size, layers * width]
    pub embed_tokens: Weight,
    /// From the first embedding.  // [layers * width, hidden_size]
    pub model_projection: Weight,
    ;
    /// Norm of each part.
    pub projection_norm: NormWeights,
}

/// The projections of attention whose one key is the value too.
#[derive(Clone)]
pub struct SharedKvWeights {
    /// The inputs of compressed keys (projections, then gates, of attention and of its indexer), the latent of queries,
    /// the key, and the weights of the indexer's heads.
    pub a_proj: Weight,
    /// Queries from it.  // [num_heads * head_dim, q_lora_rank]
    pub q_b_proj: Weight,
    ;
    /// Norm of the latent.
    pub q_a_layernorm: NormWeights,
}

/// A mixture of attention heads, without its output projections. Its width is that of all keys.
#[derive(Clone)]
pub struct HeadExpertsWeights {
    /// k and v of all heads.  // [2 * width, hidden_size]
    pub kv_proj: Weight,
    /// A logit per expert, in f32.  // [num_experts, hidden_size]
    pub router: Weight,
    /// q of each expert.  // each [width, hidden_size]
    pub queries: Vec<Weight>,
    ;
    /// Bias of the sum of all outputs.  // [hidden_size]
    pub bias: Vec<f32>,
}

/// Projections of multi-head latent attention, named as in `modeling_deepseek_v3.py`.
#[derive(Clone)]
pub struct MlaWeights {
    /// q_proj or q_a_proj, stacked on kv_a_proj_with_mqa: q or its latent, the latent of k and v, the rotated part of k.
    pub a_proj: Weight,
    /// q_a_layernorm and q_b_proj, where queries have a latent.
    pub q_b: Option<(NormWeights, Weight)>,
    /// From the part of a head's query that is not rotated to the latent of k and v: the head's part of kv_b_proj,
    /// transposed.  // each [kv_lora_rank, qk_nope_head_dim]
    pub q_absorb: Vec<Weight>,
    ;
    /// Norm of the latent of k and v.
    pub kv_a_layernorm: NormWeights,
    /// Norm of the rotated part of k.
    pub k_rope_norm: Option<NormWeights>,
}

/// An indexer's parameters without the matrices that are part of the layer's projection: those of its key and of its
/// heads' weights, and of its queries if they do not come from a latent.
#[derive(Clone)]
pub struct IndexerWeights {
    /// Queries from their latent.  // [index_n_heads * index_head_dim, q_lora_rank]
    pub q_proj: Option<Weight>,
    ;
    /// What it is.
    pub spec: Indexer,
    /// Norm of a query.
    pub q_norm: Option<NormWeights>,
    /// Norm of the key.
    pub k_norm: NormWeights,
}

/// A dense MLP and a mixture of experts that read the same row.
#[derive(Clone)]
pub struct DenseAndMoe {
    /// The MLP.
    pub dense: DenseMlp,
    /// The mixture.
    pub moe: MoeMlp,
    ;
    /// Norm of the MLP's output.
    pub dense_out_norm: NormWeights,
    /// Norm of the mixture's input.
    pub moe_norm: NormWeights,
    /// Norm of the mixture's output.
    pub moe_out_norm: NormWeights,
}

/// down(act(up(x))), or down(act(gate(x)) * up(x)).
#[derive(Clone)]
pub struct DenseMlp {
    /// gate_proj and up_proj, interleaved by panels, or up_proj alone.  // [intermediate_size or twice, hidden_size]
    pub gate_up_proj: Weight,
    /// down_proj.  // [hidden_size, intermediate_size]
    pub down_proj: Weight,
    ;
    /// Width between the two projections.
    pub intermediate_size: usize,
    /// Whether there is a gate.
    pub shape: MlpShape,
    /// The activation.
    pub activation: Activation,
    /// Gates below mean + this many standard deviations are zero.
    pub gate_cutoff: Option<f32>,
    /// Norm of down_proj's input.
    pub sub_norm: Option<NormWeights>,
}

/// The MLP of a router before its last matrix, in f32.
#[derive(Clone)]
pub struct RouterMlpWeights {
    /// To the state.  // [state, hidden_size]
    pub down: Weight,
    /// Two matrices with a GELU behind each.  // [state, state]
    pub layers: [Weight; 2],
    ;
    /// Factors of the state of the layer before; empty in the first layer.  // [state]
    pub state_scale: Vec<f32>,
    /// Norm of the state.
    pub norm: NormWeights,
}

/// A mixture of experts.
#[derive(Clone)]
pub struct MoeMlp {
    /// A logit per expert, in f32.  // [num_experts, hidden_size], or of the router's state
    pub router: Weight,
    /// What makes the router's state.
    pub router_mlp: Option<Box<RouterMlpWeights>>,
    /// To the latent of the experts and back, where they work in one.
    pub latent: Option<[Weight; 2]>,
    /// The experts.
    pub experts: Vec<DenseMlp>,
    /// The expert that every token passes.
    pub shared_expert: Option<DenseMlp>,
    /// The gate of the shared expert.  // [1, hidden_size]
    pub shared_expert_gate: Option<Weight>,
    ;
    /// Added to the scores for the choice only; empty when the model has none.  // [num_experts]
    pub e_score_correction_bias: Vec<f32>,
    /// The experts of each token; empty where the router chooses.  // [vocab_size, num_experts_per_tok]
    pub tid2eid: Vec<u32>,
    /// Norm of the router's input, if it has a separate one.
    pub router_norm: Option<NormWeights>,
    /// A factor of each expert's weight; empty when the model has none.  // [num_experts]
    pub per_expert_scale: Vec<f32>,
    /// Bias of the sum of all experts; empty when the model has none.  // [hidden_size]
    pub output_bias: Vec<f32>,
}

}

impl Projection {
    /// The type of the weights that the normed row is multiplied with.
    pub fn dtype(&self) -> PackedType {
        match self {
            Projection::Heads(weight) => weight.dtype(),
            Projection::Mla(weights) => weights.a_proj.dtype(),
            Projection::Experts(weights) => weights.kv_proj.dtype(),
            Projection::SharedKv(weights) => weights.a_proj.dtype(),
        }
    }

    /// Stride of a row of queries, keys and values.
    pub fn stride(&self, config: &Config, layer: &AttentionLayer) -> usize {
        match self {
            Projection::Heads(weight) => weight.padded_out(),
            Projection::Mla(_) | Projection::Experts(_) | Projection::SharedKv(_) => {
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

impl Layer {
    /// The same weights as another layer, which has its own keys and values.
    pub(super) fn repeated(&self, index: usize, spec: LayerSpec) -> Layer {
        let attention = self.attention.clone().map(|attention| AttentionLayer {
            index,
            kv_index: index,
            spec,
            ..attention
        });
        Layer { index, spec, attention, ..self.clone() }
    }
}

impl Visit<Weight> for NormWeights {
    fn visit<'a>(&'a self, _: &mut dyn FnMut(&'a Weight)) {}
}

impl Visit<Weight> for Weight {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Weight)) {
        each(self);
    }
}

impl Visit<Weight> for Adapter {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Weight)) {
        each(&self.down);
        self.ups.iter().for_each(|(_, up)| each(up));
    }
}

impl Visit<Weight> for Projection {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Weight)) {
        match self {
            Projection::Heads(weight) => each(weight),
            Projection::Mla(weights) => weights.visit(each),
            Projection::Experts(weights) => weights.visit(each),
            Projection::SharedKv(weights) => weights.visit(each),
        }
    }
}

impl Visit<Weight> for HyperWeights {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Weight)) {
        if let HyperWeights::LowRank { down, up, .. } = self {
            [down, up].into_iter().for_each(each);
        }
    }
}

impl Visit<Weight> for Mlp {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Weight)) {
        match self {
            Mlp::Dense(mlp) => mlp.visit(each),
            Mlp::Moe(mlp) => mlp.visit(each),
            Mlp::DenseAndMoe(both) => both.visit(each),
            Mlp::DenseAndMoeForNext(both) => both.visit(each),
        }
    }
}

/// Of a block that layers share, the first one has the weights.
impl Visit<Weight> for Layer {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Weight)) {
        let block = self.shared_block.as_deref();
        if block.is_none_or(|block| block.is_first) {
            self.attention.visit(each);
        }
        if let Some(SharedBlockWeights { is_first, attention_adapter, mlp, mlp_adapter, linear, .. }) = block
        {
            is_first.then_some(mlp).into_iter().for_each(|mlp| mlp.visit(each));
            attention_adapter.visit(each);
            mlp_adapter.visit(each);
            each(linear);
        }
        self.recurrent.visit(each);
        self.mlp.visit(each);
        self.alt_up.visit(each);
        self.hyper.visit(each);
        self.ngram.visit(each);
        self.per_layer_input.visit(each);
    }
}

//! A layer, and what is outside the layers.

use super::attention::AttentionLayer;
use super::leaf::{NormWeights, parts};
use super::mlp::{Mlp, SharedBlockWeights};
use super::recurrent::{RecurrentWeights, ShortConvolution};
use crate::config::LayerSpec;

parts! {
    /// One decoder layer.
    pub struct Layer {
        /// Norms of the stream itself, before the mixer and before the MLP.
        pub stream_norms: [Option<L::Norm>; 2],
        /// Attention, where the layer has it.
        pub attention: Option<AttentionLayer<L>>,
        /// The recurrent mixer, where the layer has one.
        pub recurrent: Option<Box<RecurrentWeights<L>>>,
        /// The rest of a shared block, where the layer's attention is in one.
        pub shared_block: Option<Box<SharedBlockWeights<L>>>,
        /// Norm of the MLP's input.
        pub mlp_norm: Option<L::Norm>,
        /// The MLP, where the layer has one.
        pub mlp: Option<Mlp<L>>,
        /// Norm of the MLP's output.
        pub mlp_out_norm: Option<L::Norm>,
        /// Convolution of the MLP's output.
        pub mlp_convolution: Option<ShortConvolution<L>>,
        /// Its part of the second embedding.
        pub per_layer_input: Option<PerLayerInput<L>>,
        /// What it needs of several residual streams.
        pub alt_up: Option<Box<AltUpLayer<L>>>,
        /// Its hyper-connections: of attention, and of the MLP.
        pub hyper: Option<Box<[HyperWeights<L>; 2]>>,
        /// Its embedding of n-grams.
        pub ngram: Option<Box<NgramWeights<L>>>,
        /// Factor of its output; empty when the model has none.  // [1]
        pub scalar: L::Numbers,
        /// How the MLP's output is added, where that has learned vectors.
        pub mlp_residual_scales: Option<ResidualScales<L>>,
        ;
        /// Its place among the layers.
        pub index: usize,
        /// What differs from layer to layer.
        pub spec: LayerSpec,
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

    /// A hyper-connection.
    pub enum HyperWeights {
        /// A weight per stream.
        Sigmoid(SigmoidHyper<L>),
        /// A weight per channel of what is read.
        LowRank(LowRankHyper<L>),
    }

    /// A hyper-connection with a weight per stream.
    pub struct SigmoidHyper {
        /// From all streams to the logits of the weights.  // [kinds * hc_mult, hc_mult * hidden_size]
        pub matrix: L::Numbers,
        /// Added to them.  // [kinds * hc_mult]
        pub base: L::Numbers,
        /// Factors of them: of the weights with which streams are read, and with which they are written.  // [kinds]
        pub scale: L::Numbers,
    }

    /// A hyper-connection with a weight per channel of what is read.
    pub struct LowRankHyper {
        /// Norm of each stream.  // [hc_mult * hidden_size]
        pub norm: L::Norm,
        /// To the low rank, then to the weights with which streams are written.  // [hc_lowrank + hc_mult, all streams]
        pub down: L::Matrix,
        /// From the low rank to the weights with which they are read.  // [all streams, hc_lowrank]
        pub up: L::Matrix,
    }

    /// How a layer predicts and corrects several residual streams, and its low-rank branch parallel to attention.
    pub struct AltUpLayer {
        /// Norm of the router's input, with the router's factor.
        pub router_norm: L::Norm,
        /// [num_inputs, hidden_size]
        pub modality_router: L::Numbers,
        /// [num_inputs * num_inputs, num_inputs]
        pub prediction_coefs: L::Numbers,
        /// [num_inputs, num_inputs]
        pub correction_coefs: L::Numbers,
        /// [hidden_size]
        pub correct_output_scale: L::Numbers,
        /// [laurel_rank, hidden_size]
        pub laurel_left: L::Matrix,
        /// [hidden_size, laurel_rank]
        pub laurel_right: L::Matrix,
        /// Norm of what the branch adds.
        pub laurel_norm: L::Norm,
    }

    /// A layer's embedding of n-grams.
    pub struct NgramWeights {
        /// The rows that hashes choose.  // [rows, row_width]
        pub table: L::Matrix,
        /// From them to a key per stream, then to a value.  // [(hc_mult + 1) * hidden_size, ple_embed_dim]
        pub key_value_proj: L::Matrix,
        /// Norms of the keys, of the streams, and of what the convolution reads.  // [hc_mult * hidden_size] each
        pub norms: [L::Norm; 3],
        /// The depthwise convolution.  // [positions, hc_mult * hidden_size]
        pub conv: L::Numbers,
        ;
        /// Its place among the parts of the recurrent state.
        pub state_layer: usize,
        /// Its place among the layers with such an embedding.
        pub table_index: usize,
    }

    /// How a layer adds its part of the second embedding.
    pub struct PerLayerInput {
        /// The gate.  // [width, hidden_size]
        pub gate: L::Matrix,
        /// Back to the stream.  // [hidden_size, width]
        pub projection: L::Matrix,
        /// Norm of what is added.
        pub out_norm: L::Norm,
    }

    /// The second embedding.
    pub struct PerLayerEmbedding {
        /// A row per token, a part of it for each layer.  // [vocab_size, layers * width]
        pub embed_tokens: L::Matrix,
        /// From the first embedding.  // [layers * width, hidden_size]
        pub model_projection: L::Matrix,
        /// Norm of each part.
        pub projection_norm: L::Norm,
    }

    /// What is outside the layers.
    pub struct OutsideLayers {
        /// Token embedding.  // [vocab_size, hidden_size]
        pub embed_tokens: L::Matrix,
        /// Norm of the embedding.
        pub embedding_norm: Option<L::Norm>,
        /// Scale and bias of the embedding: (x + bias) * scale.
        pub embedding_scales: Option<[L::Numbers; 2]>,
        /// A second embedding, a part of which each layer adds.
        pub per_layer: Option<PerLayerEmbedding<L>>,
        /// From the first residual stream to the others, and back; empty where there is one stream.
        pub streams: [Vec<L::Matrix>; 2],
        /// Learned positions.  // [max_position_embeddings, hidden_size], or empty
        pub positions: L::Numbers,
        /// The first state of the low one of two stacks; empty where there is one stack.
        pub low_state: L::Numbers,
        /// The hyper-connection after the last layer.
        pub hyper_head: Option<HyperWeights<L>>,
        /// `model.norm`, where the model has it.
        pub norm: Option<L::Norm>,
        /// A matrix and a norm before the projection to logits.
        pub head_transform: Option<(L::Matrix, L::Norm)>,
        /// The projection to logits, unless it is the embedding.  // [vocab_size, hidden_size]
        pub lm_head: Option<L::Matrix>,
    }

    /// What the layer for multi-token prediction reads: fc([norm(embedding), norm(hidden state)]).
    pub struct HiddenInput {
        /// Norm of the embedding.
        pub embedding_norm: L::Norm,
        /// Norm of the hidden state.
        pub hidden_norm: L::Norm,
        /// From both to the layer's input.  // [hidden_size, 2 * hidden_size]
        pub fc: L::Matrix,
    }

    /// Multi-token prediction.
    pub struct MtpLayer {
        /// What the layer reads.
        pub input: HiddenInput<L>,
        /// The layer.
        pub layer: Layer<L>,
        /// Norm after it.
        pub norm: L::Norm,
    }
}

impl Layer {
    /// The same weights as another layer, which has its own keys and values.
    pub fn repeated(&self, index: usize, spec: LayerSpec) -> Layer {
        let attention = self.attention.clone().map(|attention| AttentionLayer {
            index,
            kv_index: index,
            spec,
            ..attention
        });
        Layer { index, spec, attention, ..self.clone() }
    }
}

impl OutsideLayers {
    /// The embedding and the projection to logits alone, with another norm.
    #[must_use]
    pub fn ends(&self, norm: NormWeights) -> Self {
        Self {
            embed_tokens: self.embed_tokens.clone(),
            embedding_norm: None,
            embedding_scales: None,
            per_layer: None,
            streams: [Vec::new(), Vec::new()],
            positions: Vec::new(),
            low_state: Vec::new(),
            hyper_head: None,
            norm: Some(norm),
            head_transform: None,
            lm_head: self.lm_head.clone(),
        }
    }
}

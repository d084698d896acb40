//! A layer, and what is outside the layers.

use super::attention::{AttentionLayer, ResidualScales};
use super::leaf::{NormWeights, parts};
use super::mechanisms::{LayerMechanisms, OutsideMechanisms};
use super::mlp::Mlp;
use super::recurrent::RecurrentWeights;
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
        /// Norm of the MLP's input.
        pub mlp_norm: Option<L::Norm>,
        /// The MLP, where the layer has one.
        pub mlp: Option<Mlp<L>>,
        /// Norm of the MLP's output.
        pub mlp_out_norm: Option<L::Norm>,
        /// Its part of the second embedding.
        pub per_layer_input: Option<PerLayerInput<L>>,
        /// Mechanisms of a few families.
        pub mechanisms: LayerMechanisms<L>,
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
        /// Mechanisms of a few families.
        pub mechanisms: OutsideMechanisms<L>,
        /// Learned positions.  // [max_position_embeddings, hidden_size], or empty
        pub positions: L::Numbers,
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
            mechanisms: OutsideMechanisms::none(),
            positions: Vec::new(),
            norm: Some(norm),
            head_transform: None,
            lm_head: self.lm_head.clone(),
        }
    }
}

//! The tensors of a model and of its layers.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{AttentionTensors, Join, LayerTensors, MatrixSpec, MlpTensors, ModelTensors, QkvTensors};
use crate::config::{
    Attention, Bias, Config, EmbeddingPosition, LayerMlp, LmHead, Mixer, NormPlacement, Residual, Sinks, Stored,
};

/// The tensors outside the layers.
pub fn model_tensors(config: &Config) -> ModelTensors {
    let names = &config.names;
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let table = |name: String, stored| TensorRows::whole(name, stored, vocab, hidden);
    let head = |bias: Bias| MatrixSpec {
        weights: vec![table(names.lm_head.weight.to_owned(), Stored::OutIn)],
        biases: with_bias(bias, vec![TensorRows::vector(names.lm_head.bias.to_owned(), Rows::all(vocab))]),
        in_features: hidden,
        join: Join::Stacked,
    };
    let positions = match config.position {
        EmbeddingPosition::Learned => {
            let name = format!("{}{}", names.base, names.position_embedding);
            vec![TensorRows::whole(name, Stored::OutIn, config.max_position_embeddings, hidden)]
        }
        EmbeddingPosition::None | EmbeddingPosition::Rotated { .. } => Vec::new(),
    };
    ModelTensors {
        embed_tokens: MatrixSpec {
            weights: vec![table(names.embedding(), names.embedding_stored)],
            biases: Vec::new(),
            in_features: hidden,
            join: Join::Stacked,
        },
        positions,
        norm: Prefix { config, path: names.base.to_owned() }.norm(names.norm, hidden),
        lm_head: (config.lm_head == LmHead::Own).then(|| head(config.lm_head_bias)),
    }
}

/// The tensors of one layer.
pub fn layer_tensors(config: &Config, layer: usize) -> LayerTensors {
    let names = &config.names;
    let at = Prefix { config, path: format!("{}{}.{layer}.", names.base, names.layers) };
    let hidden = config.hidden_size;
    let (before, after) = match config.norm_placement {
        NormPlacement::Before => (true, false),
        NormPlacement::After => (false, true),
        NormPlacement::Around => (true, true),
        NormPlacement::AfterAttention => match config.layers[layer].mixer.has_attention() {
            true => (false, true),
            false => (true, false),
        },
    };
    let spec = config.layers[layer];
    let (mixes, has_mlp) = (spec.mixer != Mixer::None, spec.mlp != LayerMlp::None);
    let norm = |wanted: bool, name| wanted.then(|| at.norm(name, hidden));
    debug_assert!(config.residual == Residual::Sequential || !after, "a parallel block has no norms after");
    LayerTensors {
        norms: [
            norm(before && mixes, names.attention_norm),
            norm(after && mixes, names.attention_out_norm),
            norm(before && has_mlp, names.mlp_norm),
            norm(after && has_mlp, names.mlp_out_norm),
        ],
        attention: spec.mixer.has_attention().then(|| at.attention()),
        recurrent: match &config.recurrent {
            Some(recurrent) if spec.mixer.is_recurrent() => Some(at.recurrent(recurrent)),
            _ => None,
        },
        mlp: match (spec.mlp, &config.moe) {
            (LayerMlp::None, _) => None,
            (LayerMlp::Moe, Some(moe)) => Some(MlpTensors::Moe(at.moe(moe))),
            _ => Some(MlpTensors::Dense(at.dense_mlp(config.intermediate_size))),
        },
    }
}

impl Prefix<'_> {
    /// A layer's attention.
    fn attention(&self) -> AttentionTensors {
        let (config, names) = (self.config, &self.config.names);
        AttentionTensors {
            projection: match config.attention {
                Attention::Heads => QkvTensors::Heads(self.qkv()),
                Attention::Mla { .. } => self.mla(config.attention),
            },
            qk_norms: self.qk_norms(),
            sinks: match config.sinks {
                Sinks::None => Vec::new(),
                Sinks::PerHead => vec![self.vector(names.sinks, Rows::all(config.num_attention_heads))],
            },
            o_proj: self.matrix(
                &[(names.o_proj, config.hidden_size)],
                config.num_attention_heads * config.v_head_dim,
                config.attention_out_bias,
            ),
        }
    }
}

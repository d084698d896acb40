//! The tensors of a model and of its layers.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{Join, LayerTensors, MatrixSpec, MlpTensors, ModelTensors, QkvTensors};
use crate::config::{
    Attention, Bias, Config, EmbeddingPosition, LayerMlp, LmHead, NormPlacement, Residual, Sinks, Stored,
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
    };
    let norm = |wanted: bool, name| wanted.then(|| at.norm(name, hidden));
    debug_assert!(config.residual == Residual::Sequential || !after, "a parallel block has no norms after");
    LayerTensors {
        norms: [
            norm(before, names.attention_norm),
            norm(after, names.attention_out_norm),
            norm(before, names.mlp_norm),
            norm(after, names.mlp_out_norm),
        ],
        projection: match config.attention {
            Attention::Heads => QkvTensors::Heads(at.qkv()),
            Attention::Mla { .. } => at.mla(config.attention),
        },
        qk_norms: at.qk_norms(),
        sinks: match config.sinks {
            Sinks::None => Vec::new(),
            Sinks::PerHead => vec![at.vector(names.sinks, Rows::all(config.num_attention_heads))],
        },
        o_proj: at.matrix(
            &[(names.o_proj, hidden)],
            config.num_attention_heads * config.v_head_dim,
            config.attention_out_bias,
        ),
        mlp: match (config.layers[layer].mlp, &config.moe) {
            (LayerMlp::Moe, Some(moe)) => MlpTensors::Moe(at.moe(moe)),
            _ => MlpTensors::Dense(at.dense_mlp(config.intermediate_size)),
        },
    }
}

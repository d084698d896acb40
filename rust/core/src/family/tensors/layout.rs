//! What a model and its layers consist of.

use super::mechanisms;
use super::prefix::{Prefix, with_bias};
use crate::config::{
    Bias, Config, EmbeddingNorm, EmbeddingPosition, HeadTransform, LayerMlp, LayerScalar, LmHead, Mixer,
    MtpNames, NormPlacement, Residual, Stored, SubNorms, tensor,
};
use crate::parts::{
    AttentionLayer, DenseAndMoe, DenseMlp, HiddenInput, Layer, MatrixSpec, Mlp, MtpLayer, NormSpec,
    NumberSpec, OutsideLayers, Packing, PerLayerEmbedding, PerLayerInput, ResidualScales, Rows, Spec,
    TensorRows,
};

/// What is outside the layers.
pub fn outside_layers(config: &Config) -> OutsideLayers<Spec> {
    let names = &config.names;
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let stored_vocab = config.stored_vocab_size.unwrap_or(vocab);
    let table = |name: String, stored| TensorRows {
        rows: Rows::all(vocab),
        ..TensorRows::whole(name, stored, stored_vocab, hidden)
    };
    let head_bias = || vec![TensorRows::vector(names.lm_head.bias.to_owned(), Rows::all(vocab))];
    let tied_bias = match (config.lm_head, config.lm_head_bias) {
        (LmHead::Tied, Bias::Added) => head_bias(),
        _ => Vec::new(),
    };
    let lm_head = || {
        let weight = vec![table(names.lm_head.weight.to_owned(), Stored::OutIn)];
        MatrixSpec::stacked(weight, with_bias(config.lm_head_bias, head_bias()), hidden)
            .packed(Packing::Finer)
    };
    let at = Prefix::new(config, names.base.to_owned(), 0);
    let per_layer = config.per_layer_embedding.map(|second| {
        let (rows, width) = (second.vocab_size_per_layer_input, second.hidden_size_per_layer_input);
        let all = config.layers.len() * width;
        let table = TensorRows::whole(at.name(names.per_layer.embed_tokens), Stored::OutIn, rows, all);
        PerLayerEmbedding {
            embed_tokens: MatrixSpec::stacked(vec![table], Vec::new(), all).packed(Packing::Finer),
            model_projection: at.matrix(&[(names.per_layer.model_projection, all)], hidden, Bias::None),
            projection_norm: at.norm(names.per_layer.projection_norm, width),
        }
    });
    let embedding = vec![table(names.embedding(), names.embedding_stored)];
    OutsideLayers {
        embed_tokens: MatrixSpec::stacked(embedding, tied_bias, hidden).packed(Packing::TokenEmbedding),
        embedding_norm: (config.embedding_norm == EmbeddingNorm::Normed)
            .then(|| at.norm(names.embedding_norm, hidden)),
        embedding_scales: (config.residual == Residual::Scaled).then(|| {
            ["scale", "bias"]
                .map(|part| at.numbers(&format!("input_hidden_states_{part}"), Rows::all(hidden)))
        }),
        per_layer,
        mechanisms: mechanisms::outside(&at),
        positions: match config.position {
            EmbeddingPosition::Learned => {
                at.table(names.position_embedding, config.max_position_embeddings, hidden)
            }
            EmbeddingPosition::None | EmbeddingPosition::Rotated { .. } => NumberSpec::default(),
        },
        norm: (config.norm_placement != NormPlacement::None).then(|| at.norm(names.norm, hidden)),
        head_transform: match config.head_transform {
            HeadTransform::None => None,
            HeadTransform::DenseAndNorm { bias, .. } => {
                // The head has no base.
                let head = Prefix::new(config, String::new(), 0);
                let dense = head.matrix(&[(tensor!("lm_head.dense"), hidden)], hidden, bias);
                Some((dense, head.norm(tensor!("lm_head.norm"), hidden)))
            }
        },
        lm_head: (config.lm_head == LmHead::Own).then(lm_head),
    }
}

/// Multi-token prediction, where the model has it.
pub fn mtp_layer(config: &Config) -> Option<MtpLayer<Spec>> {
    let (own, MtpNames { base, fc, embedding_norm, hidden_norm, norm }) =
        (config.of_mtp()?, config.mtp?.names);
    let path = base.map_or_else(|| layer_path(&own, 0), str::to_owned);
    let (at, hidden) = (Prefix::new(&own, path, 0), own.hidden_size);
    Some(MtpLayer {
        input: HiddenInput {
            embedding_norm: at.norm(embedding_norm, hidden),
            hidden_norm: at.norm(hidden_norm, hidden),
            fc: at.matrix(&[(fc, hidden)], 2 * hidden, Bias::None),
        },
        layer: layer(&own, 0),
        norm: at.norm(norm, hidden),
    })
}

/// The path of one layer's tensors, with the dot.
fn layer_path(config: &Config, layer: usize) -> String {
    let names = &config.names;
    let in_one_list = ("", names.first_layer + layer / names.layers_per_number);
    let (stack, number) = mechanisms::numbered(config, layer).unwrap_or(in_one_list);
    format!("{}{stack}{}.{number}.", names.base, names.layers)
}

/// One layer.
pub fn layer(config: &Config, index: usize) -> Layer<Spec> {
    let (names, spec, hidden) = (&config.names, &config.layers[index], config.hidden_size);
    let mut at = Prefix::new(config, layer_path(config, index), index);
    at.part = index % names.layers_per_number;
    let elsewhere = mechanisms::attention_elsewhere(&mut at);
    let [norm, out_norm, mlp_norm, mlp_out_norm] = norms(&at);
    let (stream_norms, norm, mlp_norm) = match config.norm_placement {
        NormPlacement::InStream => ([norm, mlp_norm], None, None),
        _ => ([None, None], norm, mlp_norm),
    };
    let mixer_norms = [norm, out_norm];
    let attention = match elsewhere {
        Some((elsewhere, norm)) => Some(elsewhere.attention([Some(norm), None])),
        None => spec.mixer.has_attention().then(|| at.attention(mixer_norms.clone())),
    };
    let [scales_of_attention, mlp_residual_scales] =
        [("post_attention", "input"), ("post_mlp", "post_attention")]
            .map(|(place, stream)| residual_scales(&at, place, stream));
    let attention =
        attention.map(|attention| AttentionLayer { residual_scales: scales_of_attention, ..attention });
    let recurrent = config.recurrent.as_ref().filter(|_| spec.mixer.is_recurrent());
    Layer {
        stream_norms,
        attention,
        recurrent: recurrent.and_then(|recurrent| at.recurrent(recurrent, mixer_norms)).map(Box::new),
        mlp_norm: mlp_norm.map(|norm| norm.times(config.mlp_input_factor)),
        mlp: mlp(&at),
        mlp_out_norm,
        per_layer_input: config.per_layer_embedding.map(|second| {
            let (names, width) = (&names.per_layer, second.hidden_size_per_layer_input);
            PerLayerInput {
                gate: at.matrix(&[(names.gate, width)], hidden, Bias::None),
                projection: at.matrix(&[(names.projection, hidden)], width, Bias::None),
                out_norm: at.norm(names.out_norm, hidden),
            }
        }),
        mechanisms: mechanisms::in_layer(&at),
        scalar: match config.layer_scalar {
            LayerScalar::None => NumberSpec::default(),
            LayerScalar::Learned => at.numbers(names.layer_scalar, Rows::all(1)),
        },
        mlp_residual_scales,
        index,
        spec: *spec,
    }
}

/// Norms before the mixer and after it, before the MLP and after it.
fn norms(at: &Prefix<'_>) -> [Option<NormSpec>; 4] {
    let (config, spec, names, hidden) = (at.config, at.layer, &at.config.names, at.config.hidden_size);
    let is_mixed = spec.mlp == LayerMlp::Moe;
    let placed = match config.norm_placement {
        NormPlacement::None => [false; 4],
        NormPlacement::Before | NormPlacement::InStream => [true, false, true, false],
        NormPlacement::After => [false, true, false, true],
        NormPlacement::Around => [true; 4],
        NormPlacement::BeforeAndAfterMoe => [true, false, true, is_mixed],
        NormPlacement::BeforeButFirst => [at.index > 0, false, true, false],
        NormPlacement::BeforeGated { .. } => [true, false, true, false],
        NormPlacement::AfterAttention if spec.mixer.has_attention() => [false, true, false, true],
        NormPlacement::AfterAttention => [true, false, true, false],
    };
    debug_assert!(
        config.residual != Residual::Parallel || !placed[1] && !placed[3],
        "a parallel block has no norms after"
    );
    let (mixes, has_mlp) = (spec.mixer != Mixer::None, spec.mlp != LayerMlp::None);
    let norm = |place: usize, has_branch: bool, name, is_gated: bool| match config.norm_placement {
        _ if !placed[place] || !has_branch => None,
        NormPlacement::BeforeGated { gated_norm_rank } if is_gated => {
            Some(at.gated_norm(name, hidden, gated_norm_rank))
        }
        _ => Some(at.norm(name, hidden)),
    };
    [
        norm(0, mixes, names.attention_norm, true),
        norm(1, mixes, names.attention_out_norm, false),
        norm(2, has_mlp, names.mlp_norm, is_mixed),
        norm(3, has_mlp, names.mlp_out_norm, false),
    ]
}

/// The layer's MLP.
fn mlp(at: &Prefix<'_>) -> Option<Mlp<Spec>> {
    let (config, spec, names) = (at.config, at.layer, &at.config.names);
    let width = spec.intermediate_size.unwrap_or(config.intermediate_size);
    let dense = || DenseMlp {
        sub_norm: (config.sub_norms == SubNorms::BeforeOutput).then(|| at.norm(names.mlp_sub_norm, width)),
        stated_activation: spec.activation.unwrap_or(config.activation),
        gate_cutoff: spec.gate_cutoff,
        ..at.dense_mlp(names.gate_up_proj, names.down_proj, width, config.mlp_bias)
    };
    Some(match (spec.mlp, &config.moe) {
        (LayerMlp::None, _) => return None,
        (LayerMlp::Moe | LayerMlp::HashMoe, Some(moe)) => Mlp::Moe(Box::new(at.moe(moe))),
        (LayerMlp::DenseAndMoeForNext, Some(moe)) => {
            Mlp::DenseAndMoeForNext(Box::new((dense(), at.moe(moe))))
        }
        (LayerMlp::DenseAndMoe, Some(moe)) => {
            let [dense_out_norm, moe_norm, moe_out_norm] =
                names.moe_norms.map(|name| at.norm(name, config.hidden_size));
            let (dense, moe) = (dense(), at.moe(moe));
            Mlp::DenseAndMoe(Box::new(DenseAndMoe { dense, moe, dense_out_norm, moe_norm, moe_out_norm }))
        }
        _ => Mlp::Dense(Box::new(dense())),
    })
}

/// How a branch is added: scale and bias of the branch, then of the stream; or the scale of the stream alone.
fn residual_scales(at: &Prefix<'_>, place: &str, stream: &str) -> Option<ResidualScales<Spec>> {
    let (hidden, vector) =
        (at.config.hidden_size, |name: String| at.numbers(&name, Rows::all(at.config.hidden_size)));
    let part = |part: &str| format!("{place}_residual_scale.{part}");
    match at.config.residual {
        Residual::Sequential | Residual::Parallel => None,
        Residual::StreamScaled => Some(ResidualScales {
            branch: NumberSpec::constant(1.0, hidden),
            stream: vector(format!("{stream}_residual")),
            bias: NumberSpec::constant(0.0, hidden),
        }),
        Residual::Scaled => {
            let all = ["hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"]
                .map(|name| at.vector(&part(name), Rows::all(hidden)));
            Some(ResidualScales {
                branch: vector(part("hidden_states_scale")),
                stream: vector(part("residual_scale")),
                bias: NumberSpec::vectors(all).prepared(move |all| {
                    let of = |part: usize, channel: usize| all[part * hidden + channel];
                    let bias = |channel| of(0, channel) * of(1, channel) + of(2, channel) * of(3, channel);
                    (0..hidden).map(bias).collect()
                }),
            })
        }
    }
}

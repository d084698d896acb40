//! The tensors of a model and of its layers.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{
    AltUpTensors, AttentionTensors, DenseTensors, Join, LayerTensors, MatrixSpec, MlpTensors, ModelTensors,
    MtpTensors, PerLayerTensors, QkvTensors,
};
use crate::config::{
    Attention, Bias, Config, EmbeddingNorm, EmbeddingPosition, HeadOutputs, HeadTransform, LayerMlp,
    LayerScalar, LmHead, Mask, Mixer, MtpNames, NormPlacement, Recurrent, Residual, Sinks, Stack, Stored,
    SubNorms, tensor,
};

/// The tensors outside the layers.
pub fn model_tensors(config: &Config) -> ModelTensors {
    let names = &config.names;
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let stored_vocab = config.stored_vocab_size.unwrap_or(vocab);
    let table = |name: String, stored| TensorRows {
        rows: Rows::all(vocab),
        ..TensorRows::whole(name, stored, stored_vocab, hidden)
    };
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
    let matrix =
        |weights, in_features| MatrixSpec { weights, biases: Vec::new(), in_features, join: Join::Stacked };
    let at = Prefix::new(config, names.base.to_owned(), &config.layers[0]);
    let per_layer = config.per_layer_embedding.map(|second| {
        let (rows, width) = (second.vocab_size_per_layer_input, second.hidden_size_per_layer_input);
        let all = config.layers.len() * width;
        let table = TensorRows::whole(at.name(names.per_layer.embed_tokens), Stored::OutIn, rows, all);
        PerLayerTensors {
            embed_tokens: matrix(vec![table], all),
            model_projection: at.matrix(&[(names.per_layer.model_projection, all)], hidden, Bias::None),
            projection_norm: at.norm(names.per_layer.projection_norm, width),
        }
    });
    ModelTensors {
        embed_tokens: matrix(vec![table(names.embedding(), names.embedding_stored)], hidden),
        embedding_norm: (config.embedding_norm == EmbeddingNorm::Normed)
            .then(|| at.norm(names.embedding_norm, hidden)),
        embedding_scales: match config.residual {
            Residual::Scaled => ["scale", "bias"]
                .map(|part| at.vector(&format!("input_hidden_states_{part}"), Rows::all(hidden)))
                .to_vec(),
            Residual::Sequential | Residual::Parallel | Residual::StreamScaled => Vec::new(),
        },
        per_layer,
        streams: names.alt_up.projections.map(|name| {
            let others = config.alt_up.map_or(0, |alt_up| alt_up.altup_num_inputs - 1);
            let of_number = |number: usize| {
                let own = at.name(&name.replace("{}", &number.to_string()));
                let mut square = TensorRows::whole(own, Stored::OutIn, hidden, hidden);
                if !name.contains("{}") {
                    square.shape = vec![others, hidden, hidden];
                    square.rows = square.rows.from(number * hidden);
                }
                matrix(vec![square], hidden)
            };
            (0..others).map(of_number).collect()
        }),
        positions,
        low_state: match config.cycles {
            None => Vec::new(),
            Some(_) => vec![at.vector(names.low_state, Rows::all(hidden))],
        },
        hyper_head: config.hyper_connections.map(|hyper| at.hyper(names.hyper[2], hyper, true)),
        norm: (config.norm_placement != NormPlacement::InHyperConnections)
            .then(|| at.norm(names.norm, hidden)),
        head_transform: match config.head_transform {
            HeadTransform::None => None,
            HeadTransform::DenseAndNorm { bias, .. } => {
                // The head has no base.
                let head = Prefix::new(config, String::new(), &config.layers[0]);
                let dense = head.matrix(&[(tensor!("lm_head.dense"), hidden)], hidden, bias);
                Some((dense, head.norm(tensor!("lm_head.norm"), hidden)))
            }
        },
        tied_bias: match (config.lm_head, config.lm_head_bias) {
            (LmHead::Tied, Bias::Added) => {
                vec![TensorRows::vector(names.lm_head.bias.to_owned(), Rows::all(vocab))]
            }
            _ => Vec::new(),
        },
        lm_head: (config.lm_head == LmHead::Own).then(|| head(config.lm_head_bias)),
    }
}

/// The tensors of multi-token prediction, where the model has it.
pub fn mtp_tensors(config: &Config) -> Option<MtpTensors> {
    let (own, MtpNames { base, fc, embedding_norm, hidden_norm, norm }) =
        (config.of_mtp()?, config.mtp?.names);
    let path = base.map_or_else(|| layer_path(&own, 0), str::to_owned);
    let (at, hidden) = (Prefix::new(&own, path, &own.layers[0]), own.hidden_size);
    Some(MtpTensors {
        embedding_norm: at.norm(embedding_norm, hidden),
        hidden_norm: at.norm(hidden_norm, hidden),
        fc: at.matrix(&[(fc, hidden)], 2 * hidden, Bias::None),
        layer: layer_tensors(&own, 0),
        norm: at.norm(norm, hidden),
    })
}

/// The path of one layer's tensors, with the dot.
fn layer_path(config: &Config, layer: usize) -> String {
    let names = &config.names;
    let (stack, number) = match config.cycles {
        None => ("", names.first_layer + layer / names.layers_per_number),
        Some(cycles) => {
            let [high, low] = names.stacks;
            let stack = if cycles.stack(layer) == Stack::High { high } else { low };
            (stack, layer % cycles.num_layers_per_stack)
        }
    };
    format!("{}{stack}{}.{number}.", names.base, names.layers)
}

/// The tensors of one layer.
pub fn layer_tensors(config: &Config, layer: usize) -> LayerTensors {
    let (names, spec) = (&config.names, &config.layers[layer]);
    let mut at = Prefix::new(config, layer_path(config, layer), spec);
    at.part = layer % names.layers_per_number;
    let hidden = config.hidden_size;
    let (block, shared_block) = match (spec.mixer, &config.shared_block) {
        (Mixer::AfterShared { first, index }, Some(shared)) => {
            let linear = at.matrix(&[(tensor!("linear"), hidden)], hidden, Bias::None);
            at.path.push_str("mamba_decoder.");
            let path = format!("{}{}.{first}.shared_transformer.", names.base, names.layers);
            let block = Prefix { attention_input: 2 * hidden, ..Prefix::new(config, path, spec) };
            let rest = block.shared_block(shared, index, linear);
            (Some(block), Some(Box::new(rest)))
        }
        _ => (None, None),
    };
    // Before attention and after it, before the MLP and after it.
    let placed = match config.norm_placement {
        NormPlacement::InHyperConnections => [false; 4],
        NormPlacement::Before | NormPlacement::InStream => [true, false, true, false],
        NormPlacement::After => [false, true, false, true],
        NormPlacement::Around => [true; 4],
        NormPlacement::BeforeAndAfterMoe => [true, false, true, spec.mlp == LayerMlp::Moe],
        NormPlacement::BeforeButFirst => [layer > 0, false, true, false],
        NormPlacement::BeforeGated { .. } => [true, false, true, false],
        NormPlacement::AfterAttention if spec.mixer.has_attention() => [false, true, false, true],
        NormPlacement::AfterAttention => [true, false, true, false],
    };
    let (mixes, has_mlp) = (spec.mixer != Mixer::None, spec.mlp != LayerMlp::None);
    let placed = [placed[0] && mixes, placed[1] && mixes, placed[2] && has_mlp, placed[3] && has_mlp];
    let all = [names.attention_norm, names.attention_out_norm, names.mlp_norm, names.mlp_out_norm];
    let gates = [true, false, spec.mlp == LayerMlp::Moe, false];
    let norm = |(name, gated)| match config.norm_placement {
        NormPlacement::BeforeGated { gated_norm_rank } if gated => {
            at.gated_norm(name, hidden, gated_norm_rank)
        }
        _ => at.norm(name, hidden),
    };
    let mut norms = all.into_iter().zip(gates).zip(placed).map(|(name, placed)| placed.then(|| norm(name)));
    debug_assert!(
        config.residual != Residual::Parallel || !placed[1] && !placed[3],
        "a parallel block has no norms after"
    );
    let inner_norm = |name, width| (config.sub_norms == SubNorms::BeforeOutput).then(|| at.norm(name, width));
    let width = spec.intermediate_size.unwrap_or(config.intermediate_size);
    let dense = || DenseTensors {
        sub_norm: inner_norm(names.mlp_sub_norm, width),
        ..at.dense_mlp(names.gate_up_proj, names.down_proj, width, config.mlp_bias)
    };
    // Attention may be in a block that layers share.
    let of_attention = block.as_ref().unwrap_or(&at);
    let heads = of_attention.heads;
    let attention = |at: &Prefix<'_>| AttentionTensors {
        projection: match config.attention_of(spec) {
            Attention::Heads => QkvTensors::Heads(at.qkv()),
            mla @ Attention::Mla { .. } => at.mla(mla),
            Attention::MixtureOfHeads { num_experts, .. } => at.head_experts(num_experts),
            Attention::SharedKv { q_lora_rank, .. } => at.shared_kv(q_lora_rank),
        },
        compression: at.compression(),
        indexer: at.indexer(),
        relative_scores: at.relative_scores(),
        dynamic_mask: config.dynamic_mask.map(|_| at.dynamic_mask()),
        convolution: match (&config.recurrent, spec.mixer) {
            (Some(Recurrent::BeforeAttention(convolution)), Mixer::ConvolvedAttention) => {
                Some(at.qk_convolution(*convolution))
            }
            _ => None,
        },
        qk_norms: at.qk_norms(),
        value_norm: at.value_norm(),
        attention_sub_norm: inner_norm(names.attention_sub_norm, heads.out_width()),
        lambdas: match config.head_outputs {
            HeadOutputs::Own => Vec::new(),
            HeadOutputs::Differential => ["q1", "k1", "q2", "k2"]
                .map(|part| at.vector(&format!("self_attn.lambda_{part}"), Rows::all(heads.head_dim)))
                .to_vec(),
        },
        sinks: match (config.sinks, spec.mask) {
            (Sinks::PerHead, _) | (Sinks::PerHeadInWindows, Mask::Sliding(_)) => {
                vec![at.vector(names.sinks, Rows::all(heads.num_attention_heads))]
            }
            _ => Vec::new(),
        },
        o_a_proj: match config.attention_of(spec) {
            Attention::SharedKv { o_groups, o_lora_rank, .. } => at.o_a_proj(o_groups, o_lora_rank),
            Attention::Mla { kv_lora_rank, qk_rope_head_dim, .. } => {
                at.values_of_latent(kv_lora_rank, heads.head_dim - qk_rope_head_dim)
            }
            Attention::Heads | Attention::MixtureOfHeads { .. } => Vec::new(),
        },
        o_proj: match config.attention_of(spec) {
            Attention::MixtureOfHeads { num_experts, .. } => at.head_expert_outputs(num_experts),
            Attention::SharedKv { o_groups, o_lora_rank, .. } => {
                vec![at.matrix(&[(names.o_proj, hidden)], o_groups * o_lora_rank, Bias::None)]
            }
            Attention::Heads | Attention::Mla { .. } => vec![at.matrix(
                &[(names.o_proj, hidden)],
                match config.head_outputs {
                    HeadOutputs::Own => heads.out_width(),
                    HeadOutputs::Differential => heads.out_width() / 2,
                },
                at.attention_out_bias(layer + 1 == config.layers.len()),
            )],
        },
    };
    LayerTensors {
        norms: [
            norms.next().flatten(),
            norms.next().flatten(),
            norms.next().flatten(),
            norms.next().flatten(),
        ],
        attention: spec.mixer.has_attention().then(|| attention(of_attention)),
        recurrent: match &config.recurrent {
            Some(recurrent) if spec.mixer.is_recurrent() => at.recurrent(recurrent),
            _ => None,
        },
        branch_convolutions: match config.recurrent {
            Some(Recurrent::OfBranches(convolutions)) => {
                Some(Box::new(at.branch_convolutions(convolutions.kernel_size)))
            }
            _ => None,
        },
        shared_block,
        mlp: match (spec.mlp, &config.moe) {
            (LayerMlp::None, _) => None,
            (LayerMlp::Moe | LayerMlp::HashMoe, Some(moe)) => Some(MlpTensors::Moe(at.moe(moe))),
            (LayerMlp::DenseAndMoeForNext, Some(moe)) => {
                Some(MlpTensors::DenseAndMoeForNext(dense(), at.moe(moe)))
            }
            (LayerMlp::DenseAndMoe, Some(moe)) => Some(MlpTensors::DenseAndMoe(
                dense(),
                at.moe(moe),
                Box::new(names.moe_norms.map(|name| at.norm(name, hidden))),
            )),
            _ => Some(MlpTensors::Dense(dense())),
        },
        per_layer_input: config.per_layer_embedding.map(|second| {
            let width = second.hidden_size_per_layer_input;
            let names = &names.per_layer;
            (
                at.matrix(&[(names.gate, width)], hidden, Bias::None),
                at.matrix(&[(names.projection, hidden)], width, Bias::None),
                at.norm(names.out_norm, hidden),
            )
        }),
        alt_up: config.alt_up.map(|alt_up| {
            let (inputs, rank, names) = (alt_up.altup_num_inputs, alt_up.laurel_rank, &names.alt_up);
            let table = |name, rows, columns| TensorRows::whole(at.name(name), Stored::OutIn, rows, columns);
            Box::new(AltUpTensors {
                router_norm: at.norm(names.router_norm, hidden),
                modality_router: table(names.modality_router, inputs, hidden),
                prediction_coefs: table(names.prediction_coefs, inputs * inputs, inputs),
                correction_coefs: table(names.correction_coefs, inputs, inputs),
                correct_output_scale: at.vector(names.correct_output_scale, Rows::all(hidden)),
                laurel_left: at.matrix(&[(names.laurel_left, rank)], hidden, Bias::None),
                laurel_right: at.matrix(&[(names.laurel_right, hidden)], rank, Bias::None),
                laurel_norm: at.norm(names.laurel_norm, hidden),
            })
        }),
        hyper: config
            .hyper_connections
            .map(|hyper| Box::new([0, 1].map(|branch| at.hyper(names.hyper[branch], hyper, false)))),
        ngram: match (&config.ngram_embedding, spec.ngram_table, config.hyper_connections) {
            (Some(ngram), Some(table), Some(hyper)) => Some(Box::new(at.ngram(ngram, table, hyper.hc_mult))),
            _ => None,
        },
        scalar: match config.layer_scalar {
            LayerScalar::None => Vec::new(),
            LayerScalar::Learned => vec![at.vector(names.layer_scalar, Rows::all(1))],
        },
        residual_scales: [("post_attention", "input"), ("post_mlp", "post_attention")].map(
            |(place, stream)| match config.residual {
                Residual::StreamScaled => vec![at.vector(&format!("{stream}_residual"), Rows::all(hidden))],
                Residual::Scaled => {
                    let parts =
                        ["hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"];
                    let part = |part| at.vector(&format!("{place}_residual_scale.{part}"), Rows::all(hidden));
                    parts.map(part).to_vec()
                }
                Residual::Sequential | Residual::Parallel => Vec::new(),
            },
        ),
    }
}

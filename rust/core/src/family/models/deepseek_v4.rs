//! DeepSeek V4 (deepseek_v4): windows and compressed keys, of which an indexer chooses some; hyper-connections whose
//! streams are mixed; experts of the first layers by the token's number.
//!
//! DeepSeek-AI 2026. Defaults of absent keys: transformers 5.23, `configuration_deepseek_v4.py`; names of tensors: the published
//! files, which transformers writes too. It normalizes the weights of experts regardless of `norm_topk_prob`.

use crate::checkpoint::escape_for_terminal;
use crate::config::{
    Activation, Attention, Bias, Config, LayerMlp, LayerRope, Mask, Mechanisms, Mixer, MlaNames, Moe,
    MoeNames, Names, Normalization, QkNorm, Recurrent, ResidualFactors, RopeLayout, RopeScaling, Scoring,
    Sinks, Values, Window, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{Routing, ignore_multi_token_prediction, only_word, routed_moe};
use crate::family::keys::rope::{Partial, RopeFacts, rope_object, rope_of, ropes_by_kind};
use crate::family::keys::windows::{layer_kinds, layer_numbers, window};
use crate::mechanisms::compression::config::{
    CompressedAttention, CompressedIndexer, Compression, CompressorNames,
};
use crate::mechanisms::hyper::config::{HEAD, HyperConnections, HyperNames, StreamWeights};
use crate::mechanisms::indexer::config::{IndexHeads, RotatedPart};
use ropechat_platform::error::Result;

pub(crate) static DEEPSEEK_V4: Family = Family { model_types: &["deepseek_v4"], aliases: &[], config };

const NAMES: Names = Names {
    bases: &["model.", ""],
    lm_head: tensor!("head"),
    attention_norm: tensor!("attn_norm"),
    mlp_norm: tensor!("ffn_norm"),
    k_norm: tensor!("attn.norm"),
    sinks: "attn.attn_sink",
    mla: MlaNames {
        q_a_proj: tensor!("attn.wq_a"),
        q_a_layernorm: tensor!("attn.q_norm"),
        q_b_proj: tensor!("attn.wq_b"),
        kv_a_proj: tensor!("attn.wkv"),
        ..Names::LLAMA.mla
    },
    o_proj: tensor!("attn.wo_b"),
    moe: MoeNames::Each {
        router: tensor!("ffn.gate"),
        experts: "ffn.experts",
        parts: PARTS,
        shared: "ffn.shared_experts",
        shared_parts: PARTS,
    },
    correction_bias: "ffn.gate.bias",
    tid2eid: "ffn.gate.tid2eid",
    ..Names::LLAMA
};

const COMPRESSORS: [CompressorNames; 2] = [
    CompressorNames {
        kv_proj: tensor!("attn.compressor.wkv"),
        gate_proj: tensor!("attn.compressor.wgate"),
        position_bias: "attn.compressor.ape",
        norm: tensor!("attn.compressor.norm"),
    },
    CompressorNames {
        kv_proj: tensor!("attn.indexer.compressor.wkv"),
        gate_proj: tensor!("attn.indexer.compressor.wgate"),
        position_bias: "attn.indexer.compressor.ape",
        norm: tensor!("attn.indexer.compressor.norm"),
    },
];
const PARTS: [&str; 3] = ["w1.weight", "w3.weight", "w2.weight"];

/// What `layer_types` calls layers; those with compressed keys have the same words in `compress_rates`.
const KINDS: [&str; 3] = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"];
const SPARSE: usize = 1;
const HEAVY: usize = 2;

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(1),
        head_dim: HeadDim::Usually(512),
        // No MLP is dense.
        intermediate_size: Some(1),
        max_position_embeddings: 1_048_576,
        // No attention has one, regardless of `attention_bias`; shared experts may.
        attention_bias: BiasKey::Absent(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        rope: None,
        windows: WindowKeys::OfFamily,
        ..Defaults::LLAMA
    };
    metadata.get("attention_bias");
    only_word(metadata, "hidden_act", "silu")?;
    only_word(metadata, "topk_method", "noaux_tc")?;
    ignore_multi_token_prediction(metadata);
    let config = base(metadata, &defaults)?;
    if config.num_key_value_heads != 1 {
        let what = format!("must be 1, since all heads read one key (got {})", config.num_key_value_heads);
        return Err(metadata.unsupported("num_key_value_heads", &what));
    }
    let stated = |key: &str, usual: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(usual))
    };
    let o_groups = stated("o_groups", 8)?;
    if !config.num_attention_heads.is_multiple_of(o_groups) {
        let what = format!(
            "must be a divisor of num_attention_heads, {} (got {o_groups})",
            config.num_attention_heads
        );
        return Err(metadata.bad("o_groups", &what));
    }
    let limit = metadata.number_or("swiglu_limit", 1e-6..=1e9, 10.0)? as f32;
    let hyper_connections = HyperConnections {
        hc_mult: metadata.integer_if_any("hc_mult", 1..=64)?.unwrap_or(4),
        weights: StreamWeights::Sinkhorn {
            hc_sinkhorn_iters: metadata.integer_if_any("hc_sinkhorn_iters", 1..=1000)?.unwrap_or(20),
            hc_eps: metadata.number_or("hc_eps", 0.0..=1.0, 1e-6)? as f32,
        },
        names: [
            HyperNames::Sigmoid(["hc_attn_fn", "hc_attn_base", "hc_attn_scale"]),
            HyperNames::Sigmoid(["hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale"]),
            HEAD,
        ],
    };
    let mut config = Config {
        attention: Attention::OfMechanism,
        qk_norm: QkNorm::PerHead(Bias::None),
        sinks: Sinks::PerHead,
        activation: Activation::ClampedSwiglu { alpha: 1.0, limit, offset: 0.0 },
        mechanisms: Mechanisms { hyper: Some(hyper_connections), ..config.mechanisms },
        moe: Some(mixture(metadata)?),
        ..config
    };
    let attention = CompressedAttention {
        q_lora_rank: stated("q_lora_rank", 1024)?,
        o_groups,
        o_lora_rank: stated("o_lora_rank", 1024)?,
        layers: vec![None; config.layers.len()],
        indexer: None,
        o_a_proj: tensor!("attn.wo_a"),
        names: COMPRESSORS,
        index_names: [tensor!("attn.indexer.wq_b"), tensor!("attn.indexer.weights_proj")],
    };
    let hashed = hashed_layers(metadata, config.layers.len())?;
    let window = window(metadata, Some(128))?;
    for (layer, hashed) in config.layers.iter_mut().zip(hashed) {
        layer.mlp = if hashed { LayerMlp::HashMoe } else { LayerMlp::Moe };
        layer.mask = window.map_or(Mask::Causal, Mask::Sliding);
        layer.values = Values::OfKeys;
        // A branch's result replaces its input in the streams.
        layer.residual_factors = [ResidualFactors { stream: 0.0, branch: 1.0 }; 2];
    }
    with_compressed_keys(metadata, with_ropes(metadata, config)?, attention)
}

/// The mixture of every layer.
fn mixture(metadata: &Metadata<'_>) -> Result<Moe> {
    const SCORING: &str = "scoring_func";
    let scoring = match metadata.text_if_any(SCORING)? {
        None | Some("sqrtsoftplus") => Scoring::SqrtSoftplus,
        Some("sigmoid") => Scoring::Sigmoid,
        Some("softmax") => Scoring::Softmax,
        Some(other) => {
            let other = escape_for_terminal(other);
            let what = format!("must be sqrtsoftplus, sigmoid or softmax (got \"{other}\")");
            return Err(metadata.unsupported(SCORING, &what));
        }
    };
    let shared = metadata.integer_if_any("n_shared_experts", 1..=1 << 16)?.unwrap_or(1);
    if shared != 1 {
        return Err(metadata.unsupported("n_shared_experts", &format!("must be 1 (got {shared})")));
    }
    let routing = Routing {
        per_token: Some(6),
        scoring,
        groups: None,
        scaling: ("routed_scaling_factor", 1.5),
        ..Routing::DEEPSEEK
    };
    Ok(Moe { normalization: Normalization::SUM, ..routed_moe(metadata, &routing)? })
}

/// Which layers look their experts up: `mlp_layer_types`, or the first `num_hash_layers`.
fn hashed_layers(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<bool>> {
    const TYPES: &str = "mlp_layer_types";
    let first = metadata.integer_if_any("num_hash_layers", 0..=1 << 16)?.unwrap_or(3);
    let Some(types) = metadata.texts_if_any(TYPES)? else {
        return Ok((0..layers).map(|layer| layer < first).collect());
    };
    if types.len() != layers {
        let what = format!("must have one entry per layer, {layers} (got {})", types.len());
        return Err(metadata.bad(TYPES, &what));
    }
    let is_hashed = |kind: &&str| match *kind {
        "hash_moe" => Ok(true),
        "moe" => Ok(false),
        other => {
            let what = format!("must be hash_moe or moe (got \"{}\")", escape_for_terminal(other));
            Err(metadata.unsupported(TYPES, &what))
        }
    };
    types.iter().map(is_hashed).collect()
}

/// The rope of layers with a window only, and that of the others, in this order.
fn with_ropes(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    const ROTATED: &str = "qk_rope_head_dim";
    const ROPES: [&str; 2] = ["main", "compress"];
    const THETAS: [&str; 2] = ["rope_theta", "compress_rope_theta"];
    let rotated = metadata.integer_if_any(ROTATED, 2..=1 << 13)?;
    let facts = [10_000.0, 160_000.0].map(|theta| RopeFacts {
        theta,
        head_dim: config.head_dim,
        partial: Partial::Usually(rotated.map_or(0.125, |rotated| rotated as f64 / config.head_dim as f64)),
        layout: RopeLayout::Interleaved,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    });
    let object = rope_object(metadata)?;
    let ropes = match object.filter(|object| !ROPES.iter().any(|kind| object.has(kind))) {
        None => {
            let [main, compress] = ropes_by_kind(metadata, ROPES, THETAS, facts)?;
            main.into_iter().chain(compress).collect::<Vec<_>>()
        }
        // As published: one object, which is that of compressed keys. Their yarn has no factor unless it is stated.
        Some(object) => {
            let main = rope_of(metadata, None, THETAS[0], &facts[0])?;
            let mut compress = rope_of(metadata, Some(&object), THETAS[1], &facts[1])?;
            if let RopeScaling::Yarn { attention_factor, .. } = &mut compress.scaling
                && !object.has("attention_factor")
            {
                *attention_factor = 1.0;
            }
            vec![main, compress]
        }
    };
    let [main, compress] = &ropes[..] else {
        return Err(metadata.bad("rope_parameters", "must hold an object for each of main, compress"));
    };
    if main.rotary_dim != compress.rotary_dim || rotated.is_some_and(|rotated| rotated != main.rotary_dim) {
        let what = format!(
            "must be what every rope rotates of a head (got {} and {})",
            main.rotary_dim, compress.rotary_dim
        );
        return Err(metadata.bad(ROTATED, &what));
    }
    Ok(Config { ropes, ..config })
}

/// Compressed keys and the indexer in the layers that have them.
fn with_compressed_keys(
    metadata: &Metadata<'_>,
    mut config: Config,
    mut attention: CompressedAttention,
) -> Result<Config> {
    let kinds = kinds(metadata, config.layers.len())?;
    let [sparse, heavy] = compress_rates(metadata)?;
    let stated = |key: &str, usual: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(usual))
    };
    let index_topk = stated("index_topk", 512)?;
    let heads = IndexHeads {
        index_n_heads: stated("index_n_heads", 64)?,
        index_head_dim: stated("index_head_dim", 128)?,
        norm: config.norm,
        rope: 1,
        rotated: RotatedPart::Last,
    };
    let rotary_dim = config.ropes[heads.rope].rotary_dim;
    if kinds.contains(&SPARSE) {
        if rotary_dim > heads.index_head_dim {
            let what = format!(
                "must be at least the rotated part of a head, {rotary_dim} (got {})",
                heads.index_head_dim
            );
            return Err(metadata.bad("index_head_dim", &what));
        }
        attention.indexer = Some(CompressedIndexer { heads, index_topk });
    }
    for ((layer, keys), kind) in config.layers.iter_mut().zip(&mut attention.layers).zip(kinds) {
        layer.rope = LayerRope::Rotary(usize::from(kind != 0));
        if kind != 0 {
            layer.mixer = Mixer::AttentionWithWindow;
        }
        *keys = match kind {
            SPARSE => Some(Compression { compress_rate: sparse, overlapping: true }),
            HEAVY => Some(Compression { compress_rate: heavy, overlapping: false }),
            _ => None,
        };
    }
    let kept = |layer| {
        let (values, positions) = attention.window(layer, config.head_dim);
        values * positions
    };
    let values = (0..config.layers.len()).map(kept).max().unwrap_or_default();
    let has_state = attention.layers.iter().any(Option::is_some);
    config.recurrent = has_state.then_some(Recurrent::Window(Window { values, positions: 1 }));
    config.mechanisms.compression = Some(attention);
    Ok(config)
}

/// Each layer's place among [`KINDS`]: `layer_types`; or (as published) `compress_ratios`, where 0, 4 and 128 stand for them,
/// which lists layers that predict further tokens too; or two heavily compressed ones, then both in turn.
fn kinds(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<usize>> {
    const RATIOS: &str = "compress_ratios";
    let ratios = layer_numbers(metadata, RATIOS)?;
    if let Some(kinds) = layer_kinds(metadata, layers, &KINDS)? {
        return Ok(kinds);
    }
    if ratios.is_empty() {
        return Ok((0..layers)
            .map(|layer| if layer < 2 || layer % 2 == 0 { HEAVY } else { SPARSE })
            .collect());
    }
    if ratios.len() < layers {
        let what = format!("must have one number per layer, {layers} (got {})", ratios.len());
        return Err(metadata.bad(RATIOS, &what));
    }
    let kind = |ratio: &usize| match ratio {
        0 => Ok(0),
        4 => Ok(SPARSE),
        128 => Ok(HEAVY),
        other => Err(metadata.unsupported(RATIOS, &format!("must hold 0, 4 and 128 only (got {other})"))),
    };
    ratios[..layers].iter().map(kind).collect()
}

/// Positions of a window of the two kinds of layers with compressed keys.
fn compress_rates(metadata: &Metadata<'_>) -> Result<[usize; 2]> {
    const RATES: std::ops::RangeInclusive<u64> = 1..=1 << 12;
    let mut rates = [4, 128];
    if let Some(listed) = metadata.object_if_any("compress_rates")? {
        for (rate, kind) in rates.iter_mut().zip(&KINDS[1..]) {
            *rate = listed.integer_if_any(kind, RATES)?.unwrap_or(*rate);
        }
        crate::family::keys::rope::refuse_unread(&listed)?;
    }
    for (rate, key) in rates.iter_mut().zip(["compress_rate_csa", "compress_rate_hca"]) {
        *rate = metadata.integer_if_any(key, RATES)?.unwrap_or(*rate);
    }
    Ok(rates)
}

//! The names of the tensors of a `.gguf` file, and what differs between them and Hugging Face's.

use super::archs::{Arch, Rotary};
use super::hybrid;
use super::rope::{FREQS, divisors};
use super::source::Source;
use crate::checkpoint::json::describe;
use crate::config::{
    Bias, Config, GateUp, HeadRows, KvB, MlaNames, MlpShape, MoeNames, Names, NormWeight, QkNorm, Qkv,
    RopeScaling, Stored, tensor,
};
use crate::error::Result;

/// Key of the factor of the attention scores.
const SCALE: &str = "attention.scale";

/// llama.cpp's names (`tensor_mapping.py`).
const NAMES: Names = Names {
    bases: &[""],
    base: "",
    embed_tokens: "token_embd.weight",
    embedding_stored: Stored::OutIn,
    position_embedding: "position_embd.weight",
    layers: "blk",
    stored: Stored::OutIn,
    norm: tensor!("output_norm"),
    lm_head: tensor!("output"),
    attention_norm: tensor!("attn_norm"),
    attention_out_norm: tensor!("post_attention_norm"),
    mlp_norm: tensor!("ffn_norm"),
    mlp_out_norm: tensor!("post_ffw_norm"),
    qkv: Qkv::Separate([tensor!("attn_q"), tensor!("attn_k"), tensor!("attn_v")]),
    head_rows: HeadRows::InOrder,
    q_norm: tensor!("attn_q_norm"),
    k_norm: tensor!("attn_k_norm"),
    sinks: "attn_sinks.weight",
    mla: MlaNames {
        q_proj: tensor!("attn_q"),
        q_a_proj: tensor!("attn_q_a"),
        q_a_layernorm: tensor!("attn_q_a_norm"),
        q_b_proj: tensor!("attn_q_b"),
        kv_a_proj: tensor!("attn_kv_a_mqa"),
        kv_a_layernorm: tensor!("attn_kv_a_norm"),
        kv_b_proj: KvB::Together(tensor!("attn_kv_b")),
        ..Names::LLAMA.mla
    },
    attention_gate: tensor!("attn_gate"),
    recurrent: Names::LLAMA.recurrent,
    o_proj: tensor!("attn_output"),
    gate_up_proj: GateUp::Separate { gate: tensor!("ffn_gate"), up: tensor!("ffn_up") },
    down_proj: tensor!("ffn_down"),
    moe: MoeNames::Merged {
        router: tensor!("ffn_gate_inp"),
        parts: [tensor!("ffn_gate_exps"), tensor!("ffn_up_exps"), tensor!("ffn_down_exps")],
        shared: [tensor!("ffn_gate_shexp"), tensor!("ffn_up_shexp"), tensor!("ffn_down_shexp")],
        shared_gate: tensor!("ffn_gate_inp_shexp"),
    },
    correction_bias: "exp_probs_b.bias",
    ..Names::LLAMA
};

/// The config of the family with the names, the layouts and the biases that this file has.
///
/// Errors: `Config` when the number of layers is not that of the file, or divisors are not one per pair.
pub(super) fn as_stored(config: Config, arch: &Arch, source: &Source<'_>) -> Result<Config> {
    source.checkpoint.require(NAMES.embed_tokens, &[config.vocab_size, config.hidden_size])?;
    check_layers(&config, source)?;
    let mut config = Config { names: names(&config, arch, source), ..config };
    hybrid::as_stored(&mut config, arch, source);
    // The converter adds the one.
    if config.norm_weight == NormWeight::MinusOne {
        config.norm_weight = NormWeight::Plain;
    }
    // The norms of the heads are stacked.
    if config.qk_norm == QkNorm::PerHeadSplit {
        config.qk_norm = QkNorm::PerHeadOwn;
    }
    let added = |bias: &mut Bias, tensors: &[&str]| {
        if tensors.iter().any(|name| source.has_in_layers(name)) {
            *bias = Bias::Added;
        }
    };
    added(&mut config.attention_bias, &["attn_q.bias", "attn_qkv.bias"]);
    added(&mut config.attention_out_bias, &["attn_output.bias"]);
    added(&mut config.mlp_bias, &["ffn_down.bias"]);
    if source.checkpoint.contains("output.bias") {
        config.lm_head_bias = Bias::Added;
    }
    if let Some(scale) = source.get(SCALE)? {
        let number = scale.as_f64().filter(|scale| (1e-9..=1e9).contains(scale));
        let what = || format!("must be a number from 1e-9 to 1e9 (got {})", describe(&scale));
        config.attention_multiplier = number.ok_or_else(|| source.bad(&source.full(SCALE), what()))? as f32;
    }
    if arch.rotary != Rotary::None && source.checkpoint.contains(FREQS) {
        divide(&mut config, source)?;
    }
    Ok(config)
}

/// The names, as far as they depend on the file: fused matrices, one norm for two places.
fn names(config: &Config, arch: &Arch, source: &Source<'_>) -> Names {
    let of_family = &config.names;
    let one_norm = of_family.mlp_norm == of_family.attention_norm;
    let mut names = Names { head_rows: arch.head_rows, ..NAMES };
    if source.has_in_layers("attn_qkv.weight") {
        names.qkv = Qkv::Stacked(tensor!("attn_qkv"));
    }
    if source.has_in_layers("attn_k_b.weight") {
        names.mla.kv_b_proj = KvB::Apart { keys: tensor!("attn_k_b"), values: tensor!("attn_v_b") };
    }
    if source.has_in_layer("attn_norm_2.weight") {
        // falcon 40B: the second is attention's.
        (names.attention_norm, names.mlp_norm) = (tensor!("attn_norm_2"), tensor!("attn_norm"));
    } else if one_norm {
        names.mlp_norm = names.attention_norm;
    } else if arch.name == "gpt-oss" {
        names.mlp_norm = tensor!("post_attention_norm");
    }
    names.gate_up_proj = match of_family.gate_up_proj {
        GateUp::Stacked(_) if !source.has_in_layers("ffn_gate.weight") => GateUp::Stacked(tensor!("ffn_up")),
        _ if config.mlp == MlpShape::Plain => Names::plain_up(tensor!("ffn_up")),
        _ => names.gate_up_proj,
    };
    hybrid::rename(&mut names, of_family, arch, source);
    names
}

/// Refuses a file with fewer or more layers than it states.
fn check_layers(config: &Config, source: &Source<'_>) -> Result<()> {
    let numbers = source.checkpoint.names().filter_map(|name| {
        let (number, _) = name.strip_prefix("blk.")?.split_once('.')?;
        number.parse::<usize>().ok()
    });
    let found = numbers.max().map_or(0, |last| last.saturating_add(1));
    let stated = source.whole("block_count")?.and_then(|count| usize::try_from(count).ok());
    let stated = stated.unwrap_or(config.layers.len());
    if found == stated {
        return Ok(());
    }
    let what = format!("{stated}, and the file has tensors of {found} layers; they must agree");
    Err(source.bad(&source.full("block_count"), what))
}

/// Llama 3's scaling, which the file holds as divisors.
fn divide(config: &mut Config, source: &Source<'_>) -> Result<()> {
    let divisors = divisors(source, FREQS)?;
    for rope in &mut config.ropes {
        if divisors.len() != rope.rotary_dim / 2 {
            let what =
                format!("must have one number per pair, {} (got {})", rope.rotary_dim / 2, divisors.len());
            return Err(source.bad(FREQS, what));
        }
        if rope.scaling != RopeScaling::None {
            let what = "must not stand beside rope.scaling";
            return Err(source.unsupported(FREQS, what.to_owned()));
        }
        rope.scaling = RopeScaling::Divided { factors: divisors.clone() };
    }
    Ok(())
}

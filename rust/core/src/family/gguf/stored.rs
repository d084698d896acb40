//! The names of the tensors of a `.gguf` file, and what differs between them and Hugging Face's.

use super::arch::{Arch, Rotary};
use super::hybrid;
use super::rope::{FREQS, divisors};
use super::source::Source;
use crate::checkpoint::json::describe;
use crate::config::{
    Activation, Bias, Config, GateUp, HeadRows, KvB, LayerScalar, MlaNames, MlpShape, MoeNames, MtpNames,
    Names, NormWeight, PerLayerNames, QkNorm, Qkv, Rope, RopeScaling, Shared, Stored, Tensor, tensor,
};
use ropechat_platform::error::Result;

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
    correction_bias: "exp_probs_b.bias",
    moe_norms: [tensor!("post_ffw_norm_1"), tensor!("pre_ffw_norm_2"), tensor!("post_ffw_norm_2")],
    router_scales: ["ffn_gate_inp.scale", "ffn_down_exps.scale"],
    attention_sub_norm: tensor!("attn_sub_norm"),
    mlp_sub_norm: tensor!("ffn_sub_norm"),
    per_layer: PerLayerNames {
        embed_tokens: "per_layer_token_embd.weight",
        model_projection: tensor!("per_layer_model_proj"),
        projection_norm: tensor!("per_layer_proj_norm"),
        gate: tensor!("inp_gate"),
        projection: tensor!("proj"),
        out_norm: tensor!("post_norm"),
    },
    layer_scalar: "layer_output_scale.weight",
    ..Names::LLAMA
};

/// The config of the family with the names, the layouts and the biases that this file has.
///
/// Errors: `Config` when the number of layers is not that of the file, or divisors are not one per pair.
pub(super) fn as_stored(config: Config, arch: &Arch, source: &Source<'_>) -> Result<Config> {
    source.checkpoint.require(NAMES.embed_tokens, &[config.vocab_size, config.hidden_size])?;
    check_layers(&config, source)?;
    let mut config = Config { names: names(&config, arch, source), ..config };
    config.mechanisms.use_gguf_names();
    hybrid::as_stored(&mut config, arch, source);
    // llama.cpp's converter has added 1 to these weights.
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
    if config.layer_scalar == LayerScalar::Learned && !source.has_in_layers(NAMES.layer_scalar) {
        config.layer_scalar = LayerScalar::None;
    }
    learned_by_layer(&mut config, source)?;
    if source.checkpoint.contains("output.bias") {
        config.lm_head_bias = Bias::Added;
    }
    if let Some(scale) = source.get(SCALE)? {
        let number = scale.as_f64().filter(|scale| (1e-9..=1e9).contains(scale));
        let what = || format!("must be a number from 1e-9 to 1e9 (got {})", describe(&scale));
        config.attention_multiplier = number.ok_or_else(|| source.bad(&source.full(SCALE), what()))? as f32;
    }
    let proportional = |rope: &Rope| matches!(rope.scaling, RopeScaling::Proportional { .. });
    let divided = arch.rotary != Rotary::None && source.checkpoint.contains(FREQS);
    if divided && !config.ropes.iter().any(proportional) {
        divide(&mut config, source)?;
    }
    let behind = |tensor: Tensor| format!("{}.{}.{}", NAMES.layers, config.layers.len(), tensor.weight);
    let MtpNames { fc, embedding_norm, hidden_norm, norm, .. } = MtpNames::GGUF;
    let is_stored = |tensor| source.checkpoint.contains(&behind(tensor));
    let has_mtp = config.mtp.is_some() && [fc, embedding_norm, hidden_norm, norm].into_iter().all(is_stored);
    Ok(if has_mtp { config.with_mtp(MtpNames::GGUF) } else { Config { mtp: None, ..config } })
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
    let has = |tensor: Tensor| source.has_in_layers(tensor.weight);
    if source.has_in_layer("attn_norm_2.weight") {
        // falcon 40B: the second is attention's.
        (names.attention_norm, names.mlp_norm) = (tensor!("attn_norm_2"), tensor!("attn_norm"));
    } else if one_norm {
        names.mlp_norm = names.attention_norm;
    } else {
        // Some architectures name it by what is before it.
        let possible = [names.mlp_norm, tensor!("post_attention_norm"), tensor!("attn_output_norm")];
        names.mlp_norm = possible.into_iter().find(|&norm| has(norm)).unwrap_or(names.mlp_norm);
    }
    names.gate_up_proj = match of_family.gate_up_proj {
        GateUp::Stacked(_) if !source.has_in_layers("ffn_gate.weight") => GateUp::Stacked(tensor!("ffn_up")),
        _ if config.mlp == MlpShape::Plain => Names::plain_up(tensor!("ffn_up")),
        _ => names.gate_up_proj,
    };
    hybrid::rename(&mut names, of_family, arch, source);
    if config.moe.is_some() {
        names.moe = experts(config.mlp, has);
        let bias = Tensor { weight: "exp_probs_b", bias: "" };
        if has(bias) {
            names.correction_bias = bias.weight;
        }
        names.correction_bias_shape = match source.shape_in_layers(names.correction_bias) {
            Some([1, _]) => &[1],
            _ => &[],
        };
    }
    names
}

/// Where the experts are: gate and up may be in one tensor.
fn experts(shape: MlpShape, has: impl Fn(Tensor) -> bool) -> MoeNames {
    let first = |both: Tensor, gate: Tensor, up: Tensor| {
        if shape == MlpShape::Plain || has(gate) || !has(both) {
            GateUp::Separate { gate, up }
        } else {
            GateUp::Stacked(both)
        }
    };
    let (gate, up) = (tensor!("ffn_gate_exps"), tensor!("ffn_up_exps"));
    let (shared_gate, shared_up) = (tensor!("ffn_gate_shexp"), tensor!("ffn_up_shexp"));
    MoeNames::Merged {
        router: tensor!("ffn_gate_inp"),
        gate_up: first(tensor!("ffn_gate_up_exps"), gate, up),
        down: tensor!("ffn_down_exps"),
        shared: Shared { gate_up: first(shared_up, shared_gate, shared_up), down: tensor!("ffn_down_shexp") },
        shared_gate: tensor!("ffn_gate_inp_shexp"),
    }
}

/// What a layer learns and the file keeps in its metadata: xIELU's parameters (apertus), how many gates are zero (gemma3n).
fn learned_by_layer(config: &mut Config, source: &Source<'_>) -> Result<()> {
    const XIELU: [&str; 2] = ["xielu.alpha_p", "xielu.alpha_n"];
    let cutoffs = source.full("activation_sparsity_scale");
    let count = config.layers.len();
    let of_layers = |key: &str| match source.numbers(key) {
        Some(numbers) if numbers.len() != count => {
            let what = format!("must have one number per layer, {count} (got {})", numbers.len());
            Err(source.bad(key, what))
        }
        numbers => Ok(numbers),
    };
    if let Some(cutoffs) = of_layers(&cutoffs)? {
        for (layer, cutoff) in config.layers.iter_mut().zip(cutoffs) {
            layer.gate_cutoff = Some(cutoff as f32).filter(|cutoff| cutoff.is_finite());
        }
    }
    if let [Some(alpha_p), Some(alpha_n)] = [of_layers(XIELU[0])?, of_layers(XIELU[1])?] {
        for (layer, (p, n)) in config.layers.iter_mut().zip(alpha_p.into_iter().zip(alpha_n)) {
            layer.activation = Some(Activation::xielu(p as f32, n as f32));
        }
    }
    Ok(())
}

/// Refuses a file with fewer or more layers than it states.
fn check_layers(config: &Config, source: &Source<'_>) -> Result<()> {
    let numbers = source.checkpoint.names().filter_map(|name| {
        let (number, _) = name.strip_prefix("blk.")?.split_once('.')?;
        number.parse::<usize>().ok()
    });
    let found = numbers.max().map_or(0, |last| last.saturating_add(1));
    // Layers that predict further tokens may be left out.
    let all = source.whole("block_count")?.and_then(|all| usize::try_from(all).ok());
    if found == config.layers.len() || Some(found) == all {
        return Ok(());
    }
    let what =
        format!("{}, and the file has tensors of {found} layers; they must agree", config.layers.len());
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

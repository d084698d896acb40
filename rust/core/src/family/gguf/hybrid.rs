//! Layers with a recurrent state: which layers have one, and the names of its tensors.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::arch::{Arch, RecurrentMixer};
use super::source::Source;
use super::translated::Translated;
use crate::config::{
    Config, InProj, KeyHeads, LayerMlp, Mixer, Names, Qkv, Recurrent, RecurrentForm, RecurrentNames, Tensor,
    tensor,
};
use ropechat_platform::error::Result;

const KV_HEADS: &str = "attention.head_count_kv";
const MLP_WIDTH: &str = "feed_forward_length";
/// Of models in which nothing rotates.
const ROTATION: &[&str] = &["rope.dimension_count", "rope.freq_base"];

/// Mamba and Mamba-2.
const MAMBA: RecurrentNames = RecurrentNames {
    in_proj: InProj::One(tensor!("ssm_in")),
    conv: &[tensor!("ssm_conv1d")],
    conv_split: None,
    a_log: "ssm_a",
    dt_bias: "ssm_dt.bias",
    d: "ssm_d",
    norm: tensor!("ssm_norm"),
    out_proj: tensor!("ssm_out"),
    a_log_shape: [&[], &[]],
    inner: &[tensor!("ssm_x"), tensor!("ssm_dt")],
    inner_norms: &[tensor!("ssm_dt_norm"), tensor!("ssm_b_norm"), tensor!("ssm_c_norm")],
    form: RecurrentForm::Gguf,
};

/// Parts of a layer, by its tensors. Kimi Delta Attention names its output as attention does.
#[derive(Clone, Copy, Default)]
struct Parts {
    recurrent: bool,
    attention: bool,
    experts: bool,
}

/// The layers that are computed, in order.
fn layers(source: &Source<'_>, count: usize) -> Vec<Parts> {
    let mut layers: BTreeMap<usize, Parts> = BTreeMap::new();
    for name in source.checkpoint.names() {
        let Some((number, name)) = name.strip_prefix("blk.").and_then(|name| name.split_once('.')) else {
            continue;
        };
        let Some(number) = number.parse().ok().filter(|&number| number < count) else { continue };
        let parts = layers.entry(number).or_default();
        parts.recurrent |= name.starts_with("ssm_") || name.starts_with("shortconv.");
        parts.attention |= name == "attn_output.weight";
        parts.experts |= name == "ffn_gate_inp.weight";
    }
    layers.into_values().collect()
}

/// Which layers have a recurrent state.
fn layer_types(source: &Source<'_>, out: &mut Translated, word: &'static str) {
    let types = layers(source, num_layers(out)).into_iter();
    let types: Vec<&str> = types.map(|layer| if layer.recurrent { word } else { "full_attention" }).collect();
    out.origins.insert("layer_types".to_owned(), source.full("block_count"));
    out.set("layer_types", types);
}

fn num_layers(out: &Translated) -> usize {
    out.whole("num_hidden_layers").and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}

/// Gated DeltaNet. Its tensors say which layers have it.
pub(super) fn gated_delta(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    read_unused(source, &["attention.recurrent_layers", "full_attention_interval"])?;
    layer_types(source, out, "linear_attention");
    per_head(source, out, "linear_value_head_dim")
}

pub(super) fn lfm2(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    layer_types(source, out, "conv");
    kv_heads(source, out)
}

/// The number of heads of Kimi Delta Attention is in no key.
pub(super) fn kimi(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    layer_types(source, out, "linear_attention");
    if let Some(&[heads, _]) = source.shape_in_layers("ssm_beta.weight") {
        out.set("linear_num_heads", heads);
    }
    Ok(())
}

/// Its shared experts are as wide as the routed ones, times their number.
pub(super) fn bailing(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    read_unused(source, &["expert_shared_feed_forward_length"])?;
    kimi(source, out)
}

pub(super) fn falcon_h1(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    per_head(source, out, "mamba_d_head")
}

/// Granite without positions, or Bamba; with experts or without.
pub(super) fn granite(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    layer_types(source, out, "linear_attention");
    kv_heads(source, out)?;
    per_head(source, out, "mamba_d_head")?;
    quotient(source, out, "mamba_expand", "ssm.inner_size", "embedding_length")?;
    // llama.cpp's switch for rotation.
    if source.get("rope.scaling.finetuned")? != Some(Value::Bool(false)) {
        out.set("model_type", "bamba");
        for key in ["num_local_experts", "num_experts_per_tok", "shared_intermediate_size"] {
            out.values.remove(key);
        }
    } else if source.whole("expert_count")?.unwrap_or(0) == 0 {
        out.set("num_local_experts", 0);
        out.take(source, "shared_intermediate_size", MLP_WIDTH)?;
    }
    Ok(())
}

/// Every layer is one thing, and the list of the MLPs' widths has 0 for the others.
pub(super) fn nemotron(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    read_unused(source, &["attention.layer_norm_epsilon"])?;
    read_unused(source, ROTATION)?;
    kv_heads(source, out)?;
    per_head(source, out, "mamba_head_dim")?;
    let word = |layer: &Parts| match layer {
        Parts { recurrent: true, .. } => "linear_attention",
        Parts { attention: true, .. } => "full_attention",
        Parts { experts: true, .. } => "moe",
        Parts { .. } => "mlp",
    };
    let words: Vec<&str> = layers(source, num_layers(out)).iter().map(word).collect();
    if let Some(widths) = source.per_layer(MLP_WIDTH)? {
        let of_mlps = words.iter().zip(&widths).filter(|(word, _)| **word == "mlp").map(|(_, width)| width);
        let stated: BTreeSet<Option<u64>> = of_mlps.map(Value::as_u64).collect();
        match Vec::from_iter(stated)[..] {
            [] => _ = out.values.remove("intermediate_size"),
            [Some(width)] => out.set("intermediate_size", width),
            _ => {
                let what = "must be the same number in all layers that are an MLP".to_owned();
                return Err(source.unsupported(&source.full(MLP_WIDTH), what));
            }
        }
    }
    out.set("layers_block_type", words);
    Ok(())
}

/// The tensors say which layers have attention, and which have experts; `as_stored` takes it from there.
pub(super) fn jamba(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    read_unused(source, ROTATION)?;
    kv_heads(source, out)?;
    quotient(source, out, "mamba_expand", "ssm.inner_size", "embedding_length")?;
    if out.whole("num_experts").unwrap_or(0) == 0 {
        out.set("num_experts", 1); // no mixture
        out.values.remove("num_experts_per_tok");
    }
    Ok(())
}

/// Keys that say nothing more.
fn read_unused(source: &Source<'_>, keys: &[&str]) -> Result<()> {
    keys.iter().try_for_each(|key| source.get(key).map(|_| ()))
}

/// The width of a head of the mixer.
fn per_head(source: &Source<'_>, out: &mut Translated, key: &str) -> Result<()> {
    quotient(source, out, key, "ssm.inner_size", "ssm.time_step_rank")
}

/// A size that is one key of the file by another.
fn quotient(source: &Source<'_>, out: &mut Translated, key: &str, own: &str, by: &str) -> Result<()> {
    out.origins.insert(key.to_owned(), source.full(own));
    let (Some(of), Some(by_value)) = (source.whole(own)?, source.whole(by)?) else {
        return Ok(()); // the family names what is missing
    };
    if by_value == 0 || !of.is_multiple_of(by_value) {
        let what = format!("must be a multiple of {}, {by_value} (got {of})", source.full(by));
        return Err(source.bad(&source.full(own), what));
    }
    out.set(key, of / by_value);
    Ok(())
}

/// Key/value heads of the layers with attention; a list has 0 for the others.
fn kv_heads(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    let Some(Value::Array(heads)) = source.get(KV_HEADS)? else { return Ok(()) };
    let numbers: Option<BTreeSet<u64>> = heads.iter().map(Value::as_u64).collect();
    let stated = numbers.map(|numbers| numbers.into_iter().filter(|&heads| heads > 0).collect::<Vec<_>>());
    match stated.as_deref() {
        Some([]) => _ = out.values.remove("num_key_value_heads"),
        Some([heads]) => out.set("num_key_value_heads", *heads),
        _ => {
            let what = "must be the same number in all layers with attention, and 0 in the others".to_owned();
            return Err(source.unsupported(&source.full(KV_HEADS), what));
        }
    }
    Ok(())
}

/// What the file's tensors need of a config and of its names.
pub(super) fn as_stored(config: &mut Config, arch: &Arch, source: &Source<'_>) {
    let Some(mixer) = arch.mixer else { return };
    let names = &mut config.names;
    names.recurrent = recurrent_names(mixer, source);
    names.moe_latent = [tensor!("ffn_latent_down"), tensor!("ffn_latent_up")];
    if let Some(Recurrent::Linear(linear)) = &mut config.recurrent
        && arch.name.starts_with("qwen35")
    {
        linear.key_heads = KeyHeads::Tiled;
    }
    // config.json has periods, or exceptions, where the file has tensors.
    for (layer, parts) in config.layers.iter_mut().zip(layers(source, usize::MAX)) {
        if mixer == RecurrentMixer::Mamba {
            layer.mixer = if parts.recurrent { Mixer::Recurrent } else { Mixer::Attention };
        }
        if layer.mlp == LayerMlp::Moe && !parts.experts {
            layer.mlp = LayerMlp::Dense;
        }
    }
}

fn recurrent_names(mixer: RecurrentMixer, source: &Source<'_>) -> RecurrentNames {
    match mixer {
        RecurrentMixer::Mamba | RecurrentMixer::Mamba2 => MAMBA,
        RecurrentMixer::ShortConv => RecurrentNames {
            in_proj: InProj::One(tensor!("shortconv.in_proj")),
            conv: &[tensor!("shortconv.conv")],
            out_proj: tensor!("shortconv.out_proj"),
            ..MAMBA
        },
        RecurrentMixer::GatedDelta => RecurrentNames { in_proj: delta_in_proj(source), ..MAMBA },
        RecurrentMixer::KimiDelta => RecurrentNames {
            in_proj: InProj::Each([
                tensor!("attn_q"),
                tensor!("attn_k"),
                tensor!("attn_v"),
                tensor!("ssm_g_a"),
                tensor!("ssm_beta"),
                tensor!("ssm_f_a"),
            ]),
            conv: &[tensor!("ssm_conv1d_q"), tensor!("ssm_conv1d_k"), tensor!("ssm_conv1d_v")],
            out_proj: tensor!("attn_output"),
            inner: &[tensor!("ssm_g_b"), tensor!("ssm_f_b")],
            ..MAMBA
        },
    }
}

/// Gated DeltaNet's: qwen3next has b and a together, and in its first files q, k, v and z too.
fn delta_in_proj(source: &Source<'_>) -> InProj {
    let (qkv, gate, both) = (tensor!("attn_qkv"), tensor!("attn_gate"), tensor!("ssm_ba"));
    if source.has_in_layers("ssm_in.weight") {
        InProj::ByKeyHead([tensor!("ssm_in"), both])
    } else if source.has_in_layers("ssm_ba.weight") {
        InProj::QkvAndByKeyHead([qkv, gate, both])
    } else {
        InProj::Qkv([qkv, gate, tensor!("ssm_beta"), tensor!("ssm_alpha")])
    }
}

/// The names of a hybrid's tensors that are not the usual ones.
pub(super) fn rename(names: &mut Names, of_family: &Names, arch: &Arch, source: &Source<'_>) {
    if arch.mixer.is_none() {
        return;
    }
    if let Qkv::GatedQueries(_) = of_family.qkv {
        names.qkv = Qkv::GatedQueries([tensor!("attn_q"), tensor!("attn_k"), tensor!("attn_v")]);
    }
    if source.has_in_layers("ffn_norm") {
        names.mlp_norm = Tensor { weight: "ffn_norm", bias: "" }; // falcon-h1
    }
    if !source.checkpoint.contains("output_norm.weight") {
        names.norm = tensor!("token_embd_norm"); // lfm2
    }
}

//! `quantization_config`: which layout the file's matrices have.
//!
//! Keys that choose the layout or change the maths are read; the others say how the quantized numbers were computed and
//! are not needed. The shapes of all parts are checked against these keys when the tensors are looked up. Sources:
//! transformers 5.23 `utils/quantization_config.py`, compressed-tensors 0.20 `quantization/quant_args.py`, GPTQModel
//! 7.7, AutoAWQ 0.2.9.

use super::metadata::Metadata;
use crate::checkpoint::escape_for_terminal;
use crate::checkpoint::json::describe;
use crate::checkpoint::quantized::{Number, Scheme, Strategy, TernaryForm, WeightScheme, ZeroPoints};
use crate::config::{Attention, Config, HeadTransform, LayerMlp, LayerSpec, Mechanisms, Mixer};
use ropechat_platform::error::{Error, Result};

/// Values of `quant_method` that are read.
const METHODS: &str = "fp8, fbgemm_fp8, compressed-tensors, gptq, awq, mxfp4, bitsandbytes, bitnet";
/// Longest group, and longest side of a block.
const LONGEST: u64 = 1 << 20;

/// The scheme of a config.json.
///
/// Errors: `Unsupported` for a method or a layout that is not read, `Config` for a value that none has.
pub(crate) fn scheme(metadata: &Metadata<'_>) -> Result<Scheme> {
    if let Some(value) = metadata.get("quantization") {
        let what = format!(
            "must be absent: this layout (MLX) is not read (got {}); use another copy",
            describe(value)
        );
        return Err(metadata.unsupported("quantization", &what));
    }
    for key in ["quantization_config", "compression_config"] {
        let Some(inner) = metadata.object_if_any(key)? else { continue };
        let usual = if key == "compression_config" { Some("compressed-tensors") } else { None };
        let method = inner.text_if_any("quant_method")?.or(usual);
        return match method {
            Some("fp8" | "fbgemm_fp8") => fp8(&inner),
            Some("compressed-tensors") => compressed_tensors(&inner),
            Some("gptq") => gptq(&inner),
            Some("awq") => awq(&inner),
            Some("mxfp4") => Ok(Scheme::Mxfp4),
            Some("bitsandbytes") => Ok(Scheme::BitsAndBytes),
            Some("bitnet") => bitnet(&inner),
            Some(other) => Err(metadata.unsupported(
                key,
                &format!(
                    "quant_method \"{}\" is not read; these are: {METHODS}; use a copy in one of them, or an unquantized one",
                    escape_for_terminal(other)
                ),
            )),
            None => Err(inner.bad("quant_method", &format!("it is missing; one of {METHODS} is needed"))),
        };
    }
    Ok(Scheme::Plain)
}

/// The embedding and the projection to logits are plain numbers in BitNet.
///
/// Errors: `Unsupported` for a model with other matrices than those of attention and of dense MLPs, some of which transformers
/// would convert and some not.
pub(crate) fn check_model(metadata: &Metadata<'_>, config: &mut Config) -> Result<()> {
    let Scheme::BitNet { skipped, .. } = &mut config.quantization else { return Ok(()) };
    let own = [config.names.embed_tokens, config.names.lm_head.weight];
    skipped.extend(own.map(|name| name.trim_end_matches(".weight").to_owned()));
    let is_usual = |layer: &LayerSpec| {
        layer.mixer == Mixer::Attention && layer.mlp == LayerMlp::Dense && layer.attention.is_none()
    };
    let is_dense = config.layers.iter().all(is_usual)
        && config.attention == Attention::Heads
        && config.head_transform == HeadTransform::None
        && config.mechanisms == Mechanisms::default()
        && config.per_layer_embedding.is_none()
        && config.mtp.is_none();
    if is_dense {
        return Ok(());
    }
    let what = "quant_method \"bitnet\" is read of models with attention and dense MLPs only; use an unquantized copy";
    Err(metadata.unsupported("quantization_config", what))
}

fn bitnet(inner: &Metadata<'_>) -> Result<Scheme> {
    const CLASS: &str = "linear_class";
    const MODE: &str = "quantization_mode";
    const SKIPPED: &str = "modules_to_not_convert";
    let (classes, modes) = (["bitlinear", "autobitlinear"], ["offline", "online"]);
    let one_of = |key, known: [&'static str; 2]| {
        let stated = inner.text_if_any(key)?.unwrap_or(known[0]);
        known.into_iter().find(|name| *name == stated).ok_or_else(|| unread(inner, key, stated, &known))
    };
    refuse(inner, &["use_rms_norm"])?;
    // transformers looks at the mode for autobitlinear alone.
    let form = match (one_of(CLASS, classes)?, one_of(MODE, modes)?) {
        ("bitlinear", _) => TernaryForm::Divided,
        (_, "offline") => TernaryForm::Multiplied,
        _ => TernaryForm::Floats,
    };
    let skipped = inner.texts_if_any(SKIPPED)?.unwrap_or_else(|| vec!["lm_head"]);
    let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    if let Some(pattern) = skipped.iter().find(|name| !is_plain(name)) {
        let pattern = escape_for_terminal(pattern);
        let what = format!("must be names of modules (got the pattern \"{pattern}\"); write the names out");
        return Err(inner.unsupported(SKIPPED, &what));
    }
    if !skipped.contains(&"lm_head") {
        let what =
            "must be null or name lm_head: a ternary projection to logits is not computed; use another copy";
        return Err(inner.unsupported(SKIPPED, what));
    }
    Ok(Scheme::BitNet { form, skipped: skipped.into_iter().map(str::to_owned).collect() })
}

fn fp8(inner: &Metadata<'_>) -> Result<Scheme> {
    Ok(Scheme::Fp8 { block: sides(inner, "weight_block_size")? })
}

/// [rows, columns] of a block.
fn sides(inner: &Metadata<'_>, key: &str) -> Result<Option<[usize; 2]>> {
    let Some(sides) = inner.numbers_if_any(key, 1.0..=LONGEST as f64)? else { return Ok(None) };
    match sides[..] {
        [rows, columns] if rows.fract() == 0.0 && columns.fract() == 0.0 => {
            Ok(Some([rows as usize, columns as usize]))
        }
        _ => Err(inner.bad(key, &format!("must be two whole numbers (got {sides:?})"))),
    }
}

/// The number of inputs in a group; -1 and null are all of them.
fn group_size(inner: &Metadata<'_>, key: &str) -> Result<Option<usize>> {
    match inner.get(key).map(|value| value.as_i64()) {
        None | Some(Some(-1)) => Ok(None),
        Some(_) => inner.integer_if_any(key, 1..=LONGEST),
    }
}

/// A layout that must be one of `known`, when it is stated.
fn layout(inner: &Metadata<'_>, key: &str, known: &[&str]) -> Result<()> {
    match inner.text_if_any(key)? {
        Some(stated) if !known.contains(&stated.to_lowercase().as_str()) => {
            Err(unread(inner, key, stated, known))
        }
        _ => Ok(()),
    }
}

fn unread(inner: &Metadata<'_>, key: &str, stated: &str, known: &[&str]) -> Error {
    let known = known.join(" or ");
    inner.unsupported(
        key,
        &format!("must be {known} (got \"{}\"); use another copy", escape_for_terminal(stated)),
    )
}

/// Refuses keys that change the maths and are not supported.
fn refuse(inner: &Metadata<'_>, keys: &[&str]) -> Result<()> {
    for key in keys {
        let off = |value: &serde_json::Value| match value {
            serde_json::Value::Bool(on) => !on,
            serde_json::Value::Object(object) => object.is_empty(),
            _ => false,
        };
        if let Some(value) = inner.get(key).filter(|value| !off(value)) {
            let what =
                format!("must be absent: it is not computed (got {}); use another copy", describe(value));
            return Err(inner.unsupported(key, &what));
        }
    }
    Ok(())
}

fn gptq(inner: &Metadata<'_>) -> Result<Scheme> {
    const VERSIONS: [&str; 2] = ["gptq", "gptq_v2"];
    for key in ["checkpoint_format", "format"] {
        layout(inner, key, &VERSIONS)?;
    }
    layout(inner, "pack_dtype", &["int32", "torch.int32"])?;
    refuse(inner, &["is_marlin_format", "rotation", "adapter"])?;
    let bits = inner.integer("bits", 2..=8)?;
    if ![2, 3, 4, 8].contains(&bits) {
        return Err(
            inner.unsupported("bits", &format!("must be 2, 3, 4 or 8 (got {bits}); use another copy"))
        );
    }
    let stated = inner.text_if_any("checkpoint_format")?.or(inner.text_if_any("format")?);
    let is_v2 = stated.is_some_and(|stated| stated.eq_ignore_ascii_case("gptq_v2"));
    let zero_points = if is_v2 { ZeroPoints::AsIs } else { ZeroPoints::MinusOne };
    Ok(Scheme::Gptq { bits, group_size: group_size(inner, "group_size")?, zero_points })
}

fn awq(inner: &Metadata<'_>) -> Result<Scheme> {
    for key in ["version", "format"] {
        layout(inner, key, &["gemm"])?;
    }
    let key = |usual, own| if inner.has(usual) { usual } else { own };
    let bits_key = key("bits", "w_bit");
    let bits = inner.integer(bits_key, 1..=8)?;
    if bits != 4 {
        return Err(inner.unsupported(bits_key, &format!("must be 4 (got {bits}); use another copy")));
    }
    Ok(Scheme::Awq { group_size: group_size(inner, key("group_size", "q_group_size"))? })
}

fn compressed_tensors(inner: &Metadata<'_>) -> Result<Scheme> {
    const FORMATS: [&str; 7] = [
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "dense",
        "mixed-precision",
        "fp8-block",
    ];
    layout(inner, "format", &FORMATS)?;
    if let Some(sparsity) = inner.object_if_any("sparsity_config")? {
        layout(&sparsity, "format", &["dense"])?;
    }
    refuse(inner, &["transform_config"])?;
    let Some(groups) = inner.object_if_any("config_groups")? else {
        return Err(inner.bad("config_groups", "it is missing; the schemes of the weights are needed"));
    };
    let mut schemes: Vec<WeightScheme> = Vec::new();
    for name in groups.keys() {
        let Some(group) = groups.object_if_any(name)? else { continue };
        layout(&group, "format", &FORMATS)?;
        let Some(weights) = group.object_if_any("weights")? else { continue };
        let scheme = weight_scheme(&weights)?;
        if !schemes.contains(&scheme) {
            schemes.push(scheme);
        }
    }
    Ok(Scheme::CompressedTensors(schemes))
}

fn weight_scheme(weights: &Metadata<'_>) -> Result<WeightScheme> {
    let bits = weights.integer("num_bits", 1..=64)?;
    let number = match (weights.text_if_any("type")?.unwrap_or("int"), bits) {
        ("int", 2 | 4 | 8) => Number::Int(bits),
        ("float", 8) => Number::Float8,
        (kind, _) => {
            let got = format!("\"{}\" of {bits} bits", escape_for_terminal(kind));
            let what = format!("must be int of 2, 4 or 8 bits, or float of 8 (got {got}); use another copy");
            return Err(weights.unsupported("type", &what));
        }
    };
    let size = group_size(weights, "group_size")?;
    let block = sides(weights, "block_structure")?;
    let stated = weights.text_if_any("strategy")?;
    let missing = |key: &str| weights.bad(key, "it is missing; this strategy needs it");
    let strategy = match (stated, size) {
        (Some("tensor"), _) | (None, None) => Strategy::Tensor,
        (Some("channel"), _) => Strategy::Channel,
        (Some("group") | None, Some(size)) => Strategy::Group(size),
        (Some("group"), None) => return Err(missing("group_size")),
        (Some("block"), _) => Strategy::Block(block.ok_or_else(|| missing("block_structure"))?),
        (Some(other), _) => {
            return Err(unread(weights, "strategy", other, &["tensor", "channel", "group", "block"]));
        }
    };
    Ok(WeightScheme { number, symmetric: weights.flag_or("symmetric", true)?, strategy })
}

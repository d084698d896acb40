//! Tensors of a file that the model does not read: a few kinds may be left, others are refused or told by name.
//!
//! A tensor that is not read can be missing from every result: a bias whose key is absent, a head beside a tied embedding.
//! So what is inside the layers of the model or beside its tensors in the same module is refused. Layers behind the last one
//! and modules that the model does not have are not read by transformers either: a warning names them.
//!
//! The kinds that may be left without a word, with their reasons:
//!
//! 1. Buffers: what follows from the config and is computed here ([`is_buffer`]).
//! 2. Other parts: pictures and sound beside a text model, heads for other tasks, layers that predict further tokens.
//! 3. Keys and values of layers that read those of earlier ones; transformers leaves them too.
//! 4. Copies: a block that layers share, stored once per layer with equal bytes.
//! 5. Matrices of `zero_expert_num`, experts that pass their input on: transformers writes them and never reads them.
//! 6. Tensors without a number in them, which transformers writes for no shared experts.
//! 7. Biases of zeros, which add nothing: some quantizing tools write one for every matrix.

use std::collections::BTreeSet;

use crate::checkpoint::{Checkpoint, escape_for_terminal};
use crate::config::{Config, MoeNames, Names, Qkv};
use ropechat_platform::error::{Error, Result};

/// Refuses a file with a tensor that is not `used` though it belongs to the model. Returns a warning that names the first
/// one that is outside of the model.
///
/// Errors: `Tensor` naming the first one.
pub(super) fn unread(
    checkpoint: &Checkpoint,
    config: &Config,
    used: &BTreeSet<&str>,
) -> Result<Option<String>> {
    let of_further_layers = further_layers(checkpoint, config);
    let may_be_left = |name: &str| {
        is_buffer(checkpoint, config, name)
            || is_other_part(config, name)
            || layer_of(config, name).is_some_and(|(layer, part)| {
                of_further_layers.contains(&layer)
                    || is_of_shared_keys(config, layer, part)
                    || is_copy(checkpoint, config, name, layer, part)
                    || is_of_zero_expert(config, part)
            })
            || is_empty(checkpoint, name)
            || is_zero_bias(checkpoint, name)
    };
    let unread = checkpoint.names().filter(|name| !used.contains(name) && !may_be_left(name));
    let modules: BTreeSet<&str> = used.iter().map(|name| module(name)).collect();
    let (outside, inside): (Vec<&str>, Vec<&str>) =
        unread.partition(|name| is_outside(config, name, &modules));
    let described_in = checkpoint.described_in();
    if let [first, ..] = inside[..] {
        let others = match inside.len() - 1 {
            0 => String::new(),
            count => format!(", nor are {count} others"),
        };
        return Err(Error::Tensor {
            path: checkpoint.path().to_owned(),
            name: escape_for_terminal(first),
            what: format!(
                "it is not part of the model that {described_in} describes{others}; results without it would be \
                 wrong; check that the two belong together"
            ),
        });
    }
    Ok(outside.first().map(|first| {
        let (path, name) = (checkpoint.path().display(), escape_for_terminal(first));
        let others = match outside.len() - 1 {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        format!("{path}: {name}{others}: not part of the model that {described_in} describes; not read")
    }))
}

/// The path of a tensor without its last part.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

/// Whether it is in a layer behind the last one, or in a module of which nothing is read. Such a module inside of a layer is
/// a part of that layer.
fn is_outside(config: &Config, name: &str, modules: &BTreeSet<&str>) -> bool {
    let Names { base, layers, lm_head, .. } = config.names;
    if let Some((layer, _)) = layer_of(config, name) {
        return layer >= config.layers.len();
    }
    let is_of_layers = name.strip_prefix(base).is_some_and(|rest| rest.starts_with(layers));
    !is_of_layers && !modules.contains(module(name)) && module(name) != module(lm_head.weight)
}

/// The number of the layer that a tensor is in, and its name below that.
fn layer_of<'n>(config: &Config, name: &'n str) -> Option<(usize, &'n str)> {
    let Names { base, layers, .. } = config.names;
    let (number, part) = name.strip_prefix(base)?.strip_prefix(layers)?.strip_prefix('.')?.split_once('.')?;
    Some((number.parse().ok()?, part))
}

/// Layers behind the last one that predict further tokens: they project the hidden state and an embedding together.
fn further_layers(checkpoint: &Checkpoint, config: &Config) -> BTreeSet<usize> {
    let count = config.layers.len();
    let further = checkpoint.names().filter_map(|name| layer_of(config, name));
    let predicts = |part: &str| ["eh_proj.", "nextn.eh_proj."].iter().any(|path| part.starts_with(path));
    further.filter(|&(layer, part)| layer >= count && predicts(part)).map(|(layer, _)| layer).collect()
}

/// Frequencies and masks in old files, which are computed here, and divisors, which are in the config.
fn is_buffer(checkpoint: &Checkpoint, config: &Config, name: &str) -> bool {
    const WHOLE: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
    // A bias is a vector; a mask is not.
    const MASKS: [&str; 2] = [".attn.bias", ".attention.bias"];
    const ENDS: [&str; 9] = [
        "rotary_emb.inv_freq",
        "rotary_emb.original_inv_freq",
        "rotary_emb.cos_cached",
        "rotary_emb.sin_cached",
        ".masked_bias",
        ".attn.causal_mask",
        ".act_fn.beta",
        ".act_fn.eps",
        // The position ids of a text: 0, 1, 2 ...
        "position_ids",
    ];
    // Scales of a KV cache in fewer bits.
    const KV_SCALES: [&str; 2] = [".k_scale", ".v_scale"];
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let is_vector = || checkpoint.tensor(name).is_some_and(|tensor| tensor.shape.len() == 1);
    let of_mixer = config.recurrent.iter().flat_map(|mixer| mixer.facts().buffers()).copied();
    let is_of_mechanism = || config.mechanisms.buffers().chain(of_mixer).any(|end| name.ends_with(end));
    WHOLE.contains(&name)
        || is_of_mechanism()
        || ends(&ENDS)
        || ends(&KV_SCALES)
        || ends(&MASKS) && !is_vector()
}

/// Parts for pictures and sound beside a text model below its own path (the config's warning says that they are ignored),
/// heads for other tasks, and multi-token prediction.
fn is_other_part(config: &Config, name: &str) -> bool {
    let Names { base, bases, lm_head, .. } = config.names;
    let is_head = name == lm_head.weight || name == lm_head.bias || name.starts_with("lm_head.");
    let beside = base.len() > "model.".len() && bases.len() > 2 && !name.starts_with(base) && !is_head;
    let part = ["visual.", "vision_tower.", "model.visual.", "score.", "v_head."];
    let predicts_further = name.split('.').take(2).any(|part| part == "mtp" || part.starts_with("mtp_"));
    beside || part.iter().any(|part| name.starts_with(part)) || predicts_further
}

/// Whether it belongs to keys or values of a layer that reads those of an earlier one.
fn is_of_shared_keys(config: &Config, layer: usize, part: &str) -> bool {
    let shares = config.layers.get(layer).is_some_and(|layer| layer.shares_kv_of.is_some());
    let (Qkv::Separate([_, k, v]), k_norm) = (config.names.qkv, config.names.k_norm) else { return false };
    let paths = [k, v, k_norm].map(|tensor| tensor.weight.trim_end_matches("weight"));
    shares && (paths.iter().any(|path| part.starts_with(path)) || part == "self_attn.v_norm.weight")
}

/// Whether it is a copy of a tensor of the first layer that has the same part.
fn is_copy(checkpoint: &Checkpoint, config: &Config, name: &str, layer: usize, part: &str) -> bool {
    let Some(first) = config.mechanisms.shares_tensors_of(layer) else { return false };
    let Names { base, layers, .. } = config.names;
    let same = checkpoint.tensor(&format!("{base}{layers}.{first}.{part}"));
    match (same, checkpoint.tensor(name)) {
        (Some(same), Some(copy)) => {
            (same.tensor_type, same.shape, same.bytes) == (copy.tensor_type, copy.shape, copy.bytes)
        }
        _ => false,
    }
}

/// Whether it belongs to an expert that passes its input on.
fn is_of_zero_expert(config: &Config, part: &str) -> bool {
    let (Some(moe), MoeNames::Each { experts, .. }) = (&config.moe, config.names.moe) else { return false };
    let number =
        part.strip_prefix(experts).and_then(|part| part.strip_prefix('.')?.split('.').next()?.parse().ok());
    number
        .is_some_and(|number: usize| (moe.num_experts..moe.num_experts + moe.zero_experts).contains(&number))
}

fn is_empty(checkpoint: &Checkpoint, name: &str) -> bool {
    checkpoint.tensor(name).is_some_and(|tensor| tensor.bytes.is_empty())
}

fn is_zero_bias(checkpoint: &Checkpoint, name: &str) -> bool {
    let is_bias = name.ends_with(".bias");
    is_bias && checkpoint.tensor(name).is_some_and(|bias| bias.bytes.iter().all(|&byte| byte == 0))
}

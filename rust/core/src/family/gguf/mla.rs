//! deepseek2: latent attention, and a mixture that is DeepSeek V2's or V3's by its gating function.

use serde_json::Value;

use super::arch::Arch;
use super::source::Source;
use super::translated::Translated;
use crate::checkpoint::json::describe;
use ropechat_platform::error::Result;

/// Keys of mixtures, which a dense model's file may have too.
const MIXTURE: [&str; 6] = [
    "first_k_dense_replace",
    "moe_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "topk_group",
];
/// Values of `expert_gating_func`.
const SOFTMAX: u64 = 1;
const SIGMOID: u64 = 2;

/// Adds the keys of config.json. Newer files store keys and values for attention over the latent itself; they state the
/// width of a head under keys that end in `_mla`.
pub(super) fn translate(source: &Source<'_>, arch: &Arch, out: &mut Translated) -> Result<()> {
    let width = |own: &str| -> Result<Option<u64>> {
        let over_latent = source.whole(&format!("{own}_mla"))?;
        Ok(over_latent.or(source.whole(own)?))
    };
    let rope = source.whole("rope.dimension_count")?;
    if let (Some(key), Some(rope)) = (width("attention.key_length")?, rope) {
        let nope = key.checked_sub(rope).filter(|nope| *nope > 0).ok_or_else(|| {
            let what = format!("must be more than rope.dimension_count, {rope} (got {key})");
            source.bad(&source.full("attention.key_length"), what)
        })?;
        out.values.insert("qk_nope_head_dim".to_owned(), nope.into());
    }
    if let Some(value) = width("attention.value_length")? {
        out.values.insert("v_head_dim".to_owned(), value.into());
    }
    out.values.remove("head_dim");
    // One KV head over the latent, or as many as queries over its projection: the same attention.
    if let Some(heads) = out.values.get("num_attention_heads").cloned() {
        out.values.insert("num_key_value_heads".to_owned(), heads);
    }
    out.values.entry("q_lora_rank").or_insert(Value::Null);
    match arch.name {
        "deepseek2" => mixture(source, out),
        _ => Ok(()),
    }
}

/// Which of the models it is, and how its experts are chosen.
fn mixture(source: &Source<'_>, out: &mut Translated) -> Result<()> {
    const GATING: &str = "expert_gating_func";
    // Only a sigmoid has a bias for the choice.
    let usual = if source.has_in_layers("exp_probs_b.bias") { SIGMOID } else { SOFTMAX };
    let gating = source.get(GATING)?.unwrap_or_else(|| usual.into());
    let groups = source.whole("expert_group_count")?;
    if source.whole("expert_count")?.unwrap_or(0) == 0 {
        out.set("model_type", "youtu");
        for key in MIXTURE {
            out.values.remove(key);
        }
        return Ok(());
    }
    let mut set = |key: &str, value: Value| out.values.insert(key.to_owned(), value);
    match gating.as_u64() {
        Some(SOFTMAX) => {
            set("model_type", "deepseek_v2".into());
            let limited = groups.is_some_and(|groups| groups > 1);
            set("topk_method", if limited { "group_limited_greedy" } else { "greedy" }.into());
            const NORMALIZED: &str = "expert_weights_norm";
            if source.get(NORMALIZED)? == Some(Value::Bool(true)) {
                let what = "must be false (got true with softmax)".to_owned();
                return Err(source.unsupported(&source.full(NORMALIZED), what));
            }
        }
        Some(SIGMOID) => {
            set("model_type", "deepseek_v3".into());
            // Older files do not state the groups: DeepSeek's models of 256 experts have them, smaller ones do not.
            if groups.is_none() && source.whole("expert_count")? != Some(256) {
                set("n_group", 1.into());
                set("topk_group", 1.into());
            }
        }
        _ => {
            let what = format!("must be 1 (softmax) or 2 (sigmoid) (got {})", describe(&gating));
            return Err(source.unsupported(&source.full(GATING), what));
        }
    }
    Ok(())
}

//! Dots 3 Note: latent attention everywhere, with an indexer in full layers and other widths in windowed ones, a gate per
//! head, experts that are routed as in DeepSeek V3.
//!
//! Defaults of absent keys: transformers 5.23, `configuration_dots3_note.py`.

use super::deepseek::NAMES as DEEPSEEK_NAMES;
use crate::config::{
    Attention, AttentionGate, Bias, Config, GateWidth, Heads, LayerRope, Mask, Moe, Names, QueryLatent,
    RopeLayout, SharedExpert, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, WindowKeys};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::{MlaDefaults, Rotation, latent};
use crate::family::keys::moe::{Routing, ignore_multi_token_prediction, routed_moe, sparse_layers};
use crate::family::keys::rope::{Partial, RopeFacts, refuse_unread, ropes_by_kind};
use crate::family::keys::windows::{layer_kinds, window};
use crate::mechanisms::indexer::config::LayerIndexer;
use crate::mechanisms::indexer::family::keys::{INDEXED, IndexerDefaults, indexer};
use ropechat_platform::error::Result;

pub(crate) static DOTS3_NOTE_TEXT: Family =
    Family { model_types: &["dots3_note_text"], aliases: &[], config };

const NAMES: Names = Names { attention_gate: tensor!("self_attn.g_proj"), ..DEEPSEEK_NAMES };

/// Kinds of layers, as `layer_types` and `rope_parameters` name them.
const KINDS: [&str; 3] = [INDEXED, "full_attention", "sliding_attention"];
const SLIDING: usize = 2;

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        max_position_embeddings: 524_288,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: None,
        windows: WindowKeys::OfFamily,
        ..Defaults::LLAMA
    };
    let mla = MlaDefaults {
        q_lora_rank: Some(1024),
        rotation: Rotation::Fixed(RopeLayout::Interleaved),
        latent_eps: None,
        ..MlaDefaults::DEEPSEEK
    };
    metadata.get("mlp_bias"); // no MLP has one
    ignore_multi_token_prediction(metadata);
    let config = latent(metadata, &defaults, &mla)?;
    let config = with_kinds(metadata, config)?;
    let moe = routed_moe(metadata, &Routing::DEEPSEEK)?;
    let old = metadata.integer_if_any("moe_shared_expert_intermediate_size", 1..=1 << 24)?;
    let width = metadata.integer_if_any("shared_experts_intermediate_size", 1..=1 << 24)?;
    let width = old.or(width).unwrap_or(1536);
    let shared = match moe.shared {
        SharedExpert::Added { intermediate_size } => {
            SharedExpert::Added { intermediate_size: intermediate_size / moe.intermediate_size * width }
        }
        _ => return Err(metadata.bad("n_shared_experts", "must be at least 1 (got 0)")),
    };
    let config = Config {
        moe: Some(Moe { shared, ..moe }),
        attention_gate: AttentionGate::Sigmoid(GateWidth::PerHead),
        ..config
    };
    sparse_layers(metadata, config, 1)
}

/// The layers' kinds, their widths, ropes and windows.
fn with_kinds(metadata: &Metadata<'_>, mut config: Config) -> Result<Config> {
    let count = config.layers.len();
    let dsa = match metadata.has("use_dsa") || !metadata.has("per_layer_config") {
        true => Some(metadata.flag_or("use_dsa", true)?),
        false => None,
    };
    let windows = metadata.flag_or("use_sliding_window", true)?;
    let kinds = match layer_kinds(metadata, count, &KINDS)? {
        Some(kinds) => kinds,
        None => (0..count).map(|i| if !windows || i < 2 || i % 4 == 1 { 0 } else { SLIDING }).collect(),
    };
    let kinds: Vec<usize> = kinds
        .into_iter()
        .map(|kind| match (kind, dsa) {
            (SLIDING, _) | (_, None) => kind,
            (_, Some(indexed)) => usize::from(!indexed),
        })
        .collect();
    let usual = Widths::of(&config);
    let windowed = windowed_widths(metadata, usual, &kinds)?;
    let old = metadata.integer_if_any("sliding_window_size", 1..=1 << 40)?;
    let window = window(metadata, None)?.or(old).unwrap_or(512);

    let facts = |widths: Widths, theta: f64| RopeFacts {
        theta,
        head_dim: widths.nope + widths.rope,
        partial: Partial::Dimensions(widths.rope),
        layout: RopeLayout::Interleaved,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let facts = [facts(usual, 8e7), facts(usual, 8e7), facts(windowed, 5e4)];
    let ropes = ropes_by_kind(metadata, KINDS, ["rope_theta", "rope_theta", "swa_rope_theta"], facts)?;
    for (kind, rope) in ropes.into_iter().enumerate() {
        if let Some(rope) = rope.filter(|_| kinds.contains(&kind)) {
            for (layer, _) in config.layers.iter_mut().zip(&kinds).filter(|(_, of)| **of == kind) {
                layer.rope = LayerRope::Rotary(config.ropes.len());
            }
            config.ropes.push(rope);
        }
    }
    let of_windowed = windowed.attention(&config);
    config.attention = usual.attention(&config);
    config.attention_multiplier = 1.0;
    for (layer, &kind) in config.layers.iter_mut().zip(&kinds) {
        let widths = if kind == SLIDING { windowed } else { usual };
        layer.attention_scale = 1.0 / ((widths.nope + widths.rope) as f32).sqrt();
        if kind == SLIDING {
            layer.mask = Mask::Sliding(window);
            layer.heads = Some(windowed.heads());
            layer.attention = Some(of_windowed);
        }
    }
    if kinds.contains(&0) {
        let indexing = IndexerDefaults { layout: RopeLayout::Interleaved, ..IndexerDefaults::DEEPSEEK };
        let of_kind = |kind: &usize| if *kind == 0 { LayerIndexer::Full } else { LayerIndexer::None };
        config = indexer(metadata, config, &indexing, || Ok(kinds.iter().map(of_kind).collect()))?;
    } else {
        for key in ["index_n_heads", "index_head_dim", "index_topk"] {
            metadata.get(key);
        }
    }
    Ok(config)
}

/// Widths of a kind of layers.
#[derive(Clone, Copy, PartialEq)]
struct Widths {
    num_attention_heads: usize,
    q_lora_rank: usize,
    kv_lora_rank: usize,
    nope: usize,
    rope: usize,
    value: usize,
}

impl Widths {
    fn of(config: &Config) -> Widths {
        let (q_lora_rank, kv_lora_rank, rope) = match config.attention {
            Attention::Mla { q_lora_rank, kv_lora_rank, qk_rope_head_dim, .. } => {
                (q_lora_rank.unwrap_or_default(), kv_lora_rank, qk_rope_head_dim)
            }
            _ => Default::default(),
        };
        Widths {
            num_attention_heads: config.num_attention_heads,
            q_lora_rank,
            kv_lora_rank,
            nope: config.head_dim - rope,
            rope,
            value: config.v_head_dim,
        }
    }

    fn attention(self, config: &Config) -> Attention {
        let factor = |rank: usize| (config.hidden_size as f32 / rank as f32).sqrt();
        Attention::Mla {
            q_lora_rank: Some(self.q_lora_rank),
            kv_lora_rank: self.kv_lora_rank,
            qk_rope_head_dim: self.rope,
            norm: config.norm,
            latent_factors: [factor(self.q_lora_rank), factor(self.kv_lora_rank)],
            q_latent: QueryLatent::Normed,
            k_rope_norm: Some(config.norm),
        }
    }

    fn heads(self) -> Heads {
        Heads {
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_attention_heads,
            head_dim: self.nope + self.rope,
            v_head_dim: self.value,
        }
    }
}

/// Widths of windowed layers: `per_layer_config`, whose absent keys are as in the others, or (as published) keys that begin
/// with `swa_`.
fn windowed_widths(metadata: &Metadata<'_>, usual: Widths, kinds: &[usize]) -> Result<Widths> {
    const LISTED: &str = "per_layer_config";
    let Some(listed) = metadata.object_if_any(LISTED)? else {
        let published = Widths {
            num_attention_heads: 64,
            q_lora_rank: 1024,
            kv_lora_rank: 1024,
            nope: 192,
            rope: 64,
            value: 128,
        };
        return widths(metadata, "swa_", published, 256);
    };
    let mut found: Option<Widths> = None;
    for (index, _) in kinds.iter().enumerate().filter(|(_, kind)| **kind == SLIDING) {
        let own = match listed.object_if_any(&index.to_string())? {
            None => usual,
            Some(layer) => {
                let own = widths(&layer, "", usual, usual.nope + usual.rope)?;
                refuse_unread(&layer)?;
                own
            }
        };
        if found.is_some_and(|found| found != own) {
            return Err(metadata.unsupported(LISTED, "must be the same for all layers with a window"));
        }
        found = Some(own);
    }
    refuse_unread(&listed)?;
    Ok(found.unwrap_or(usual))
}

/// Widths under keys that begin with `prefix`; `head_dim` is the sum of the two parts of a head.
fn widths(metadata: &Metadata<'_>, prefix: &str, usual: Widths, head_dim: usize) -> Result<Widths> {
    let width = |key: &str, usual: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(&format!("{prefix}{key}"), 1..=1 << 16)?.unwrap_or(usual))
    };
    let num_attention_heads = width("num_attention_heads", usual.num_attention_heads)?;
    let (nope, head_dim) = (width("qk_nope_head_dim", usual.nope)?, width("head_dim", head_dim)?);
    let rope = width("qk_rope_head_dim", head_dim.saturating_sub(nope))?;
    if nope + rope != head_dim {
        let key = format!("{prefix}head_dim");
        let what = format!("must be qk_nope_head_dim + qk_rope_head_dim, {} (got {head_dim})", nope + rope);
        return Err(metadata.bad(&key, &what));
    }
    if width("num_key_value_heads", num_attention_heads)? != num_attention_heads {
        let key = format!("{prefix}num_key_value_heads");
        return Err(metadata.bad(&key, "latent attention has as many as query heads"));
    }
    Ok(Widths {
        num_attention_heads,
        q_lora_rank: width("q_lora_rank", usual.q_lora_rank)?,
        kv_lora_rank: width("kv_lora_rank", usual.kv_lora_rank)?,
        nope,
        rope,
        value: width("v_head_dim", usual.value)?,
    })
}

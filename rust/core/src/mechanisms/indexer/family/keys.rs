//! Keys of an indexer, which chooses the positions that a query reads.

use crate::config::{Attention, Config, Norm, Rope, RopeLayout};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::layer_kinds;
use crate::mechanisms::indexer::config::{
    IndexChoice, IndexHeads, Indexer, IndexerNames, LayerIndexer, RotatedPart,
};
use ropechat_platform::error::Result;

/// What `layer_types` calls a layer with an indexer.
pub(crate) const INDEXED: &str = "indexed_attention";

/// What absent keys mean, and what the family fixes.
#[derive(Clone, Copy)]
pub(crate) struct IndexerDefaults {
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    /// `index_topk`.
    pub index_topk: usize,
    /// Norm of its key.
    pub norm: Norm,
    /// Which two dimensions of its queries and keys make a pair.
    pub layout: RopeLayout,
    pub rotated: RotatedPart,
}

impl IndexerDefaults {
    /// DeepSeek V3.2's.
    pub const DEEPSEEK: IndexerDefaults = IndexerDefaults {
        index_n_heads: 64,
        index_head_dim: 128,
        index_topk: 2048,
        norm: Norm::LayerNorm { eps: 1e-6 },
        layout: RopeLayout::Neox,
        rotated: RotatedPart::First,
    };
}

/// The indexer of latent attention, with the angles of the layers that have it: each of `layers`.
pub(crate) fn indexer(
    metadata: &Metadata<'_>,
    mut config: Config,
    defaults: &IndexerDefaults,
    layers: impl FnOnce() -> Result<Vec<LayerIndexer>>,
) -> Result<Config> {
    let stated = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(default))
    };
    let index_n_heads = stated("index_n_heads", defaults.index_n_heads)?;
    let index_head_dim = stated("index_head_dim", defaults.index_head_dim)?;
    let index_topk = stated("index_topk", defaults.index_topk)?;
    if !matches!(config.attention, Attention::Mla { q_lora_rank: Some(_), .. }) {
        return Err(
            metadata.bad("q_lora_rank", "it is missing; the indexer's queries are computed from that latent")
        );
    }
    let rope = Rope { layout: defaults.layout, ..config.ropes[0].clone() };
    if rope.rotary_dim > index_head_dim {
        let what = format!("must be at least qk_rope_head_dim, {} (got {index_head_dim})", rope.rotary_dim);
        return Err(metadata.bad("index_head_dim", &what));
    }
    let place = config.ropes.iter().position(|other| *other == rope).unwrap_or(config.ropes.len());
    if place == config.ropes.len() {
        config.ropes.push(rope);
    }
    let IndexerDefaults { norm, rotated, .. } = *defaults;
    config.mechanisms.indexer = Some(Indexer {
        heads: IndexHeads { index_n_heads, index_head_dim, norm, rope: place, rotated },
        choice: IndexChoice::Positions { index_topk },
        names: IndexerNames::DEEPSEEK,
        layers: layers()?,
    });
    Ok(config)
}

/// An indexer in every layer, or where `indexer_types` says full; the layers that are shared read what the last one chose.
///
/// `usual` says which are shared where the file does not.
pub(crate) fn indexer_in_all_layers(
    metadata: &Metadata<'_>,
    config: Config,
    defaults: &IndexerDefaults,
    usual: impl Fn(usize) -> bool,
) -> Result<Config> {
    let layers = config.layers.len();
    indexer(metadata, config, defaults, || {
        layer_kinds(metadata, layers, &[INDEXED])?;
        let shared = shared_layers(metadata, layers)?;
        let shared = shared.unwrap_or_else(|| (0..layers).map(usual).collect());
        let kind = |shared| if shared { LayerIndexer::Shared } else { LayerIndexer::Full };
        Ok(shared.into_iter().map(kind).collect())
    })
}

/// `indexer_types`; or else `index_topk_pattern`, F and S; or every `index_topk_freq`-th layer has an indexer, and so have the
/// first `index_skip_topk_offset` ones.
fn shared_layers(metadata: &Metadata<'_>, layers: usize) -> Result<Option<Vec<bool>>> {
    const FREQUENCY: &str = "index_topk_freq";
    const TYPES: &str = "indexer_types";
    const PATTERN: &str = "index_topk_pattern";
    let frequency = metadata.integer_if_any(FREQUENCY, 0..=1 << 16)?.unwrap_or(1).max(1);
    let offset = metadata.integer_if_any("index_skip_topk_offset", 0..=1 << 16)?.unwrap_or(2);
    let pattern = match metadata.get(PATTERN) {
        Some(serde_json::Value::String(letters)) => {
            let kind = |letter| if letter == 'S' { "shared" } else { "full" };
            if let Some(other) = letters.chars().find(|letter| !"FS".contains(*letter)) {
                let what = format!(
                    "must consist of F (full) and S (shared), one letter per layer (got {:?})",
                    other
                );
                return Err(metadata.bad(PATTERN, &what));
            }
            Some((PATTERN, letters.chars().map(kind).collect()))
        }
        _ => metadata.texts_if_any(PATTERN)?.map(|kinds| (PATTERN, kinds)),
    };
    let Some((key, kinds)) = metadata.texts_if_any(TYPES)?.map(|kinds| (TYPES, kinds)).or(pattern) else {
        let is_shared = |layer: usize| !(layer + 1).saturating_sub(offset).is_multiple_of(frequency);
        let is_stated = metadata.has(FREQUENCY);
        return Ok(is_stated.then(|| (0..layers).map(is_shared).collect()));
    };
    if kinds.len() != layers {
        let what = format!("must have one entry per layer, {layers} (got {})", kinds.len());
        return Err(metadata.bad(key, &what));
    }
    if let Some(other) = kinds.iter().find(|kind| !["full", "shared"].contains(kind)) {
        let what =
            format!("must be full or shared (got \"{}\")", crate::checkpoint::escape_for_terminal(other));
        return Err(metadata.unsupported(key, &what));
    }
    if kinds.first() == Some(&"shared") {
        return Err(metadata.bad(key, "must begin with full, since the first layer has none before it"));
    }
    Ok(Some(kinds.into_iter().map(|kind| kind == "shared").collect()))
}

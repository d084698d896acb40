//! Whether a model fits into memory, and in which type. This is checked before a weight is packed.
//!
//! The need follows from the specs that loading reads (`ModelPlan`), so that no second list of weights exists that could
//! disagree with the first.

use super::pace::{bounds, experts_per_chosen};
use super::schedule::READOUT_ROWS;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::quantized::Scheme;
use crate::config::{Config, Heads};
use crate::kv_cache::BLOCK;
use crate::model::ModelPlan;
use ropechat_kernels::quant::{PackedType, StorageType};
use ropechat_platform::error::{Error, Result, size};
use ropechat_platform::limits::Available;

/// The types that `auto` tries when a model does not fit as it is stored, largest first.
const SMALLER: [PackedType; 6] =
    [PackedType::BF16, PackedType::Q8_0, PackedType::Q6K, PackedType::Q5K, PackedType::Q4K, PackedType::Q4_0];
/// A model fits comfortably when it leaves one part in so many of the memory to other programs.
const LEFT_TO_OTHERS: u64 = 5;
/// Memory of the program itself, stacks of threads included.
const PROGRAM: u64 = 16 << 20;
/// The smallest context that is suggested, and the step in which it grows.
const SMALLEST_CONTEXT: u64 = 256;

/// The type that a model is loaded in, and why.
#[derive(Debug)]
pub struct Choice {
    /// None: each weight as it is stored.
    pub dtype: Option<PackedType>,
    /// Bytes of the packed weights.
    pub weights: u64,
    /// Bytes with the whole KV cache and scratch.
    pub needed: u64,
    /// The choice in one line, for the user.
    pub words: String,
    /// Whether `auto` had to choose a smaller type than the stored one.
    pub is_smaller: bool,
}

/// The KV cache that is wanted.
#[derive(Debug, Clone, Copy)]
pub struct KvRoom {
    /// Most tokens.
    pub tokens: usize,
    /// F32, F16, BF16, Q8_0, or None: the default for the weights' type.
    pub dtype: Option<PackedType>,
}

/// Bytes that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Need {
    /// The type of most bytes of the layers.
    dtype: PackedType,
    /// The types of all matrices.
    types: Vec<PackedType>,
    weights: u64,
    /// Bytes of the whole KV cache.
    kv: u64,
    kv_block: u64,
    scratch: u64,
}

impl Need {
    fn new(config: &Config, plan: &ModelPlan, kv: KvRoom) -> Self {
        let kv_layout = kv.dtype.map_or(plan.kv_layout.clone(), |dtype| plan.kv_layout.with_dtype(dtype));
        let of_mtp =
            plan.mtp_kv_layout.as_ref().map_or(0, |mtp| mtp.with_dtype(kv_layout.dtype).block_bytes());
        let kv_block = (kv_layout.block_bytes() + of_mtp) as u64;
        let blocks = (kv.tokens.div_ceil(BLOCK)) as u64;
        // The committed state and the one that is written.
        let states = 2 * plan.kv_layout.recurrent.bytes() as u64;
        Self {
            dtype: plan.dtype,
            types: plan.bytes_by_type.iter().map(|(dtype, _)| *dtype).collect(),
            weights: plan.weight_bytes() as u64,
            kv: blocks.saturating_mul(kv_block).saturating_add(states),
            kv_block,
            scratch: scratch(config, plan),
        }
    }

    fn total(&self) -> u64 {
        self.weights.saturating_add(self.scratch).saturating_add(self.kv)
    }

    /// The longest context, in whole steps of 256 tokens, that fits.
    fn longest_context(&self, available: u64) -> u64 {
        let room = available.saturating_sub(self.weights.saturating_add(self.scratch));
        let tokens = (room / self.kv_block.max(1)).saturating_mul(BLOCK as u64);
        tokens - tokens % SMALLEST_CONTEXT
    }
}

/// An estimate of the buffers of a forward pass and of its logits.
fn scratch(config: &Config, plan: &ModelPlan) -> u64 {
    let rows = *bounds(plan.weight_bytes(), experts_per_chosen(config)).end();
    // x, its branch, attention's output and the matmul's input; q, k, v; the MLP's product and the input computed from
    // it.
    let heads = config.layers.iter().map(|layer| config.cached_heads(layer));
    let qkv_width = heads.map(Heads::qkv_width).max().unwrap_or_default();
    let per_row = 4 * config.hidden_size + 2 * qkv_width + 2 * config.intermediate_size;
    let values = rows * per_row + READOUT_ROWS * plan.padded_vocab;
    4 * values as u64 + PROGRAM
}

/// Chooses the type to load in: the one asked for; for `auto` the stored one when it fits comfortably, else the largest
/// that does.
///
/// # Errors
/// Memory: what is needed, what there is, and what would fit. As [`ModelPlan::of_types`] for the tensors.
pub fn choose(
    checkpoint: &Checkpoint,
    config: &Config,
    dtype: Option<PackedType>,
    kv: KvRoom,
    available: Option<Available>,
) -> Result<Choice> {
    let context = kv.tokens;
    let measure = |dtypes: &[Option<PackedType>]| -> Result<Vec<Need>> {
        let plans = ModelPlan::of_types(checkpoint, config, dtypes)?;
        Ok(plans.iter().map(|plan| Need::new(config, plan, kv)).collect())
    };
    let chosen = |dtype, need: &Need| chosen(checkpoint, config, dtype, need);
    let smaller = |than: u64| -> Result<Vec<(PackedType, Need)>> {
        let all = SMALLER.into_iter().zip(measure(&SMALLER.map(Some))?);
        Ok(all.filter(|(_, need)| need.weights < than).collect())
    };
    let need = measure(&[dtype])?.remove(0);
    let Some(available) = available else { return Ok(chosen(dtype, &need)) };
    if dtype.is_some() && need.total() > available.bytes {
        return Err(refusal(checkpoint, &need, context, &smaller(need.weights)?, available));
    }
    let comfortable = available.bytes - available.bytes / LEFT_TO_OTHERS;
    if dtype.is_some() || need.total() <= comfortable {
        return Ok(chosen(dtype, &need));
    }
    let (smaller, stored) = (smaller(need.weights)?, need);
    let by_room = |limit: u64| smaller.iter().find(|(_, need)| need.total() <= limit);
    let as_stored_fits = stored.total() <= available.bytes;
    match by_room(comfortable).or_else(|| by_room(available.bytes)) {
        Some((dtype, need)) => Ok(Choice {
            dtype: Some(*dtype),
            weights: need.weights,
            needed: need.total(),
            words: format!(
                "dtype: {} ({}): as stored ({}) the model takes {} with its KV cache, and {} are {}",
                dtype.name(),
                size(need.weights),
                stored_as(checkpoint, config),
                size(stored.total()),
                size(available.bytes),
                available.limit
            ),
            is_smaller: true,
        }),
        None if as_stored_fits => Ok(chosen(None, &stored)),
        None => Err(refusal(checkpoint, &stored, context, &smaller, available)),
    }
}

/// The types of a file's matrices, as a message says them.
fn stored_as(checkpoint: &Checkpoint, config: &Config) -> String {
    if config.quantization != Scheme::Plain {
        return config.quantization.words();
    }
    let types: Vec<String> = checkpoint.matrix_types().iter().map(|name| name.to_lowercase()).collect();
    types.join(", ")
}

/// The types of the weights if all of them are the file's own values: those that the file's matrices are packed into.
/// Some matrices are always f32 (routers); they count only where the file has them as F32.
fn own_types(checkpoint: &Checkpoint, config: &Config, need: &Need) -> Vec<PackedType> {
    let names = checkpoint.matrix_types();
    let in_file: Vec<_> = names.iter().filter_map(|name| StorageType::named(name)).collect();
    if config.quantization != Scheme::Plain || in_file.len() < names.len() {
        return Vec::new();
    }
    let is_own =
        |dtype: &PackedType| need.types.contains(dtype) && in_file.iter().any(|kind| kind.packed() == *dtype);
    PackedType::ALL.into_iter().filter(is_own).collect()
}

/// The type that was asked for, or the stored ones.
fn chosen(checkpoint: &Checkpoint, config: &Config, asked: Option<PackedType>, need: &Need) -> Choice {
    let in_file = stored_as(checkpoint, config);
    let own = own_types(checkpoint, config, need);
    let dtype = asked.unwrap_or(need.dtype);
    let words = match own[..] {
        [only] if only == dtype => format!("{}, as stored", only.name()),
        [_, _, ..] if asked.is_none() => {
            let names: Vec<&str> = own.iter().map(|dtype| dtype.name()).collect();
            format!("mixed, as stored ({})", names.join(", "))
        }
        _ => format!("{}, made from {in_file}", dtype.name()),
    };
    let words = format!("dtype: {words} ({})", size(need.weights));
    Choice { dtype: asked, weights: need.weights, needed: need.total(), words, is_smaller: false }
}

fn refusal(
    checkpoint: &Checkpoint,
    need: &Need,
    context: usize,
    smaller: &[(PackedType, Need)],
    available: Available,
) -> Error {
    let longest = need.longest_context(available.bytes);
    let mut help = Vec::new();
    if longest >= SMALLEST_CONTEXT && longest < context as u64 {
        help.push(format!("--context {longest}"));
    }
    let fits = |(_, other): &&(PackedType, Need)| other.total() <= available.bytes;
    help.extend(smaller.iter().find(fits).map(|(dtype, _)| format!("--dtype {}", dtype.name())));
    let help = match help.is_empty() {
        true => "a smaller model is needed, or both a smaller --dtype and --context".to_owned(),
        false => format!("{} fits", help.join(" or ")),
    };
    Error::Memory {
        what: format!(
            "{}: memory: {} are needed ({} of weights in {}, {} of KV cache for {context} tokens, {} of scratch); \
             {} are {}; {help}",
            checkpoint.path().display(),
            size(need.total()),
            size(need.weights),
            need.dtype.name(),
            size(need.kv),
            size(need.scratch),
            size(available.bytes),
            available.limit
        ),
    }
}

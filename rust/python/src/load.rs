//! Loading weights: from the cache of packed weights, or packed and kept for it.

use super::call::Failure;
use pyo3::prelude::*;
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::config::Config;
use ropechat_core::engine::fit::{self, Choice, KvRoom};
use ropechat_core::family;
use ropechat_core::model::Model;
use ropechat_core::model::pack::{Key, PackCache, PackWriter, PanelSource, WORTH_A_PACK};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::progress::Progress;
use ropechat_kernels::kernel::Kernels;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::limits::Available;
use std::path::Path;
use std::sync::Arc;

/// What loading needs in addition to the model's files.
pub(super) struct Loading<'a> {
    /// None: nothing is taken from disk or kept there.
    pub pack_cache: Option<PackCache>,
    /// Called before large weights are packed.
    pub before_packing: Option<Py<PyAny>>,
    pub kernels: Kernels,
    pub pool: &'a Pool,
    pub progress: &'a Arc<Progress>,
}

/// A loaded model.
pub(super) struct Loaded {
    pub model: Arc<Model>,
    /// What identifies the weights; None where nothing may be written.
    pub identity: Option<Key>,
    pub from_pack: bool,
    /// Seconds that packing took.
    pub packing_seconds: f64,
    pub pack_writer: Option<PackWriter>,
    /// What is wrong with its pack.
    pub warning: Option<String>,
}

impl Loading<'_> {
    pub(super) fn load(
        &self,
        checkpoint: &Checkpoint,
        config: Config,
        choice: &Choice,
        kv_dtype: Option<PackedType>,
    ) -> Result<Loaded, Failure> {
        let Self { pack_cache, before_packing, kernels, pool, progress } = self;
        let identity = pack_cache.as_ref().and_then(|_| Key::new(checkpoint, choice.dtype).ok());
        let packs = match pack_cache {
            Some(cache) => PanelSource::open(cache, checkpoint, choice.dtype, pool, progress),
            None => PanelSource::none(),
        };
        if !packs.is_found()
            && choice.weights >= WORTH_A_PACK as u64
            && let Some(function) = before_packing
        {
            Python::attach(|py| function.call0(py).map(|_| ())).map_err(Failure::Callback)?;
        }
        let packs = packs.reporting(progress, choice.weights);
        let model = Model::load_with(&packs, checkpoint, config, choice.dtype, pool)?;
        let model = model.with_kv(kv_dtype, *kernels);
        Ok(Loaded {
            model: Arc::new(model),
            identity,
            from_pack: packs.is_warm(),
            packing_seconds: packs.seconds(),
            warning: packs.note().map(str::to_owned),
            pack_writer: packs.writer(),
        })
    }
}

/// The files of a draft model, opened, and the type that it is loaded in.
pub(super) struct DraftFiles {
    checkpoint: Checkpoint,
    config: Config,
    choice: Choice,
}

impl DraftFiles {
    /// Opens a draft model, and takes what it needs off the memory that is available. kv: of the model that it
    /// drafts for.
    pub(super) fn open(
        path: &str,
        dtype: Option<PackedType>,
        kv: KvRoom,
        available: &mut Option<Available>,
    ) -> Result<Self, Failure> {
        let checkpoint = Checkpoint::open(Path::new(path))?;
        // A draft model needs no drafts.
        let config = family::config(&checkpoint)?;
        family::check_tensors(&checkpoint, &config)?;
        let config = Config { mtp: None, ..config };
        let kv = KvRoom { tokens: kv.tokens.min(config.usable_length()), ..kv };
        let choice = fit::choose(&checkpoint, &config, dtype, kv, *available)?;
        if let Some(available) = available {
            available.bytes = available.bytes.saturating_sub(choice.needed);
            available.limit = "left after the draft model";
        }
        Ok(Self { checkpoint, config, choice })
    }

    pub(super) fn load(
        self,
        loading: &Loading<'_>,
        kv_dtype: Option<PackedType>,
    ) -> Result<(Loaded, Choice), Failure> {
        let loaded = loading.load(&self.checkpoint, self.config, &self.choice, kv_dtype)?;
        Ok((loaded, self.choice))
    }
}

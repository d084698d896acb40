//! What identifies a pack, and what is in it.

use crate::checkpoint::Checkpoint;
use ropechat_kernels::compute::panels::PanelShape;
use ropechat_kernels::compute::weight::Storage;
use ropechat_kernels::quant::{PANEL_LAYOUT, PackedType};
use ropechat_platform::error::Result;
use xxhash_rust::xxh3::xxh3_64;

/// Ending of a pack's file name.
pub(super) const PACK: &str = ".pack";

/// Everything that the bytes of a pack depend on, and what is computed from its weights.
#[derive(Debug, Clone)]
pub struct Key {
    /// One line each: version, layout, type, files.
    pub text: String,
    /// The file that lists the model's tensors; packs of one model replace each other.
    pub model: String,
    /// The type asked for, or `auto`: each weight as it is stored.
    pub(super) dtype: &'static str,
    pub(super) file_name: String,
}

impl Key {
    /// The key of a model's weights in a type; None: each as it is stored.
    ///
    /// # Errors
    /// Io: the files cannot be identified.
    pub fn new(checkpoint: &Checkpoint, dtype: Option<PackedType>) -> Result<Self> {
        let dtype = dtype.map_or("auto", PackedType::name);
        let files = checkpoint.identity()?.join("\n");
        let text =
            format!("ropechat {}\npanels {PANEL_LAYOUT}\n{dtype}\n{files}\n", env!("CARGO_PKG_VERSION"));
        let path = checkpoint.path();
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let model = path.display().to_string();
        let file_name = format!("{dtype}-{:016x}{PACK}", xxh3_64(text.as_bytes()));
        Ok(Self { text, model, dtype, file_name })
    }
}

/// A weight of a pack.
#[derive(Clone)]
pub(super) struct PackedTensor {
    pub name: String,
    pub shape: PanelShape,
    pub data: Storage,
}

//! Packed weights on disk: what one start packed, the next one maps.
//!
//! A pack is one file per model and `--dtype` (`file.rs` draws it). It is found by its [`Key`], which names everything
//! that its bytes depend on. It is checked as a whole before a weight of it is used, which takes about as long as one
//! token. It is written by a thread of low priority when a caller asks for it; if the program ends first, the next one
//! continues it (`writer.rs`). If a pack has any fault, the weights are packed as if there were none.

mod file;
mod key;
mod writer;

pub use key::Key;
pub use writer::{PackCache, PackWriter, WORTH_A_PACK};

use crate::checkpoint::Checkpoint;
use file::{PackFile, Unusable};
use key::PackedTensor;
use ropechat_kernels::compute::panels::PanelShape;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::progress::{Progress, Stage};
use ropechat_kernels::compute::weight::Storage;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::Result;
use ropechat_platform::files;
use ropechat_platform::memory::Buffer;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

/// Where a load takes the panels of its weights from: a pack, or the checkpoint's tensors, which it packs.
pub struct PanelSource {
    file: Option<PackFile>,
    /// All weights of this load; only when a pack may be written.
    all: RefCell<Vec<PackedTensor>>,
    /// Bytes that were packed by this load.
    packed: Cell<usize>,
    /// Where the pack of this load may be written.
    target: Option<(PackCache, Key)>,
    note: Option<String>,
    /// Where the bytes that are loaded and packed are counted.
    progress: Arc<Progress>,
    /// Seconds that packing took.
    seconds: Cell<f64>,
}

impl PanelSource {
    /// Packs every matrix and writes no pack to disk.
    pub fn none() -> Self {
        Self {
            file: None,
            all: RefCell::default(),
            packed: Cell::new(0),
            target: None,
            note: None,
            progress: Arc::default(),
            seconds: Cell::new(0.0),
        }
    }

    /// The pack of a model, checked. Without one, the weights are packed and remembered for [`PanelSource::writer`].
    ///
    /// progress: counts the bytes of the pack as they are checked.
    pub fn open(
        cache: &PackCache,
        checkpoint: &Checkpoint,
        dtype: Option<PackedType>,
        pool: &Pool,
        progress: &Progress,
    ) -> Self {
        // A model whose files cannot be identified has no pack.
        let Ok(key) = Key::new(checkpoint, dtype) else { return Self::none() };
        let _ = files::clear_old_partials(&cache.folder);
        let (file, note) = match PackFile::open(&cache.folder, &key, pool, progress) {
            Ok(file) => (Some(file), None),
            Err(Unusable::Missing) => (None, None),
            Err(Unusable::Damaged(what)) => {
                let path = cache.folder.join(&key.file_name);
                (None, Some(format!("{}: {what}; the weights are packed again", path.display())))
            }
        };
        Self { file, note, target: Some((cache.clone(), key)), ..Self::none() }
    }

    /// Reports there how many of the `total` bytes of weights are packed, from now on.
    #[must_use]
    pub fn reporting(self, progress: &Arc<Progress>, total: u64) -> Self {
        if !self.is_found() {
            progress.begin(Stage::Packing, 0, total);
        }
        Self { progress: Arc::clone(progress), ..self }
    }

    /// Bytes of a weight are packed.
    pub fn count(&self, bytes: usize) {
        self.progress.add(bytes as u64);
    }

    /// The panels of the weight called `name`: those of the pack, or what `pack` makes.
    ///
    /// # Errors
    /// Those of `pack`.
    pub fn storage(
        &self,
        name: &str,
        shape: PanelShape,
        pack: impl FnOnce() -> Result<Buffer>,
    ) -> Result<Storage> {
        let data = match self.file.as_ref().and_then(|file| file.panels(name, shape)) {
            Some(part) => {
                self.count(shape.bytes());
                Storage::File(part)
            }
            None => {
                self.packed.set(self.packed.get() + shape.bytes());
                let begun = Instant::now();
                let packed = pack()?;
                self.seconds.set(self.seconds.get() + begun.elapsed().as_secs_f64());
                Storage::Memory(Arc::new(packed))
            }
        };
        if self.target.is_some() {
            self.all.borrow_mut().push(PackedTensor { name: name.to_owned(), shape, data: data.clone() });
        }
        Ok(data)
    }

    /// Whether there is a pack to take weights from.
    pub fn is_found(&self) -> bool {
        self.file.is_some()
    }

    /// Whether the weights come from a pack, all of them.
    pub fn is_warm(&self) -> bool {
        self.file.is_some() && self.packed.get() == 0
    }

    /// Seconds that packing took: what the next start saves when it finds a pack.
    pub fn seconds(&self) -> f64 {
        self.seconds.get()
    }

    /// What is wrong with the pack, for the user.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Who writes the pack of this load; None when everything came from a pack, or too little was packed to be worth it.
    pub fn writer(self) -> Option<PackWriter> {
        let (cache, key) = self.target?;
        (self.packed.get() > 0 && self.packed.get() >= cache.smallest)
            .then(|| PackWriter::new(cache, key, self.all.into_inner()))
    }
}

//! Packed weights on disk: what one start packed, the next one maps.
//!
//! A pack is one file per model and `--dtype` (`file.rs` draws it). It is found by its [`Key`], which names everything
//! that its bytes follow from; it is checked as a whole before a weight of it is used, which costs about as much as one
//! token; and it is written by a thread that gives way to all others, once somebody asks for it (`keeper.rs`). Whatever
//! goes wrong with a pack, the weights are packed as if there was none.

mod file;
mod keeper;

use crate::checkpoint::Checkpoint;
use crate::compute::pool::Pool;
use crate::compute::weight::{PanelShape, Storage};
use crate::error::Result;
use crate::platform::checksum::checksum;
use crate::platform::memory::Buffer;
use crate::quant::{DType, PANEL_LAYOUT};
use file::{PackFile, Unusable};
pub use keeper::Keeper;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of weights from which a pack is worth its place: fewer are packed in a tenth of a second.
pub const WORTH_A_PACK: usize = 32 << 20;
/// End of a pack's name.
const PACK: &str = ".pack";

/// Where packs lie, and how much they may take.
#[derive(Debug, Clone)]
pub struct PackCache {
    /// Made when the first pack is written.
    pub folder: PathBuf,
    /// Fewer bytes are packed again each time, which spares the disk.
    pub smallest: usize,
    /// Bytes of all packs; those not used for longest make room.
    pub total: u64,
    /// Bytes that a disk keeps free.
    pub keep_free: u64,
}

impl PackCache {
    /// The usual limits: 32 MiB, 20 GB, 5 GB.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, smallest: WORTH_A_PACK, total: 20_000_000_000, keep_free: 5_000_000_000 }
    }

    /// The pack of a model, checked; without one, what is packed is remembered for [`Packs::keeper`].
    pub fn open(&self, checkpoint: &Checkpoint, dtype: Option<DType>, pool: &Pool) -> Packs {
        // Files whose identity cannot be told have no pack.
        let Ok(key) = Key::new(checkpoint, dtype) else { return Packs::none() };
        let mut packs = Packs { kept: Some((self.clone(), key)), ..Packs::none() };
        let Some((_, key)) = &packs.kept else { return packs };
        match PackFile::open(&self.folder, key, pool) {
            Ok(file) => packs.file = Some(file),
            Err(Unusable::Missing) => {}
            Err(Unusable::Damaged(what)) => {
                let path = self.folder.join(&key.file_name);
                packs.note = Some(format!("{}: {what}; the weights are packed again", path.display()));
            }
        }
        packs
    }
}

/// Everything that a pack's bytes follow from.
#[derive(Debug, Clone)]
pub struct Key {
    /// One line each: version, layout, type, files.
    text: String,
    /// For people: the file that lists the model's tensors.
    model: String,
    /// The type asked for, or `auto`: each weight as it is stored.
    dtype: &'static str,
    file_name: String,
}

impl Key {
    fn new(checkpoint: &Checkpoint, dtype: Option<DType>) -> Result<Self> {
        let dtype = dtype.map_or("auto", DType::name);
        let files = checkpoint.identity()?.join("\n");
        let text =
            format!("ropechat {}\npanels {PANEL_LAYOUT}\n{dtype}\n{files}\n", env!("CARGO_PKG_VERSION"));
        let path = checkpoint.path();
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let model = path.display().to_string();
        let file_name = format!("{dtype}-{:016x}{PACK}", checksum(text.as_bytes()));
        Ok(Self { text, model, dtype, file_name })
    }
}

/// What a load takes panels from, and what it leaves for the next one.
pub struct Packs {
    mode: Mode,
    file: Option<PackFile>,
    /// All weights of this load; only when they may be kept.
    all: RefCell<Vec<Slot>>,
    /// Bytes that were packed by this load.
    packed: Cell<usize>,
    kept: Option<(PackCache, Key)>,
    note: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pack,
    Measure,
}

/// A weight of a pack.
#[derive(Clone)]
struct Slot {
    name: String,
    shape: PanelShape,
    data: Storage,
}

impl Packs {
    /// Packs everything and keeps nothing.
    pub fn none() -> Self {
        Self {
            mode: Mode::Pack,
            file: None,
            all: RefCell::default(),
            packed: Cell::new(0),
            kept: None,
            note: None,
        }
    }

    /// Packs nothing: weights have shapes, and no panels.
    pub fn measuring() -> Self {
        Self { mode: Mode::Measure, ..Self::none() }
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
        if self.mode == Mode::Measure {
            return Ok(Storage::Memory(Arc::new(Buffer::zeroed(0, name)?)));
        }
        let data = match self.file.as_ref().and_then(|file| file.panels(name, shape)) {
            Some(part) => Storage::File(part),
            None => {
                self.packed.set(self.packed.get() + shape.bytes());
                Storage::Memory(Arc::new(pack()?))
            }
        };
        if self.kept.is_some() {
            self.all.borrow_mut().push(Slot { name: name.to_owned(), shape, data: data.clone() });
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

    /// What was wrong with the pack.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Writes the pack of this load when it is asked to; None when there is nothing worth it.
    pub fn keeper(self) -> Option<Keeper> {
        let (cache, key) = self.kept?;
        (self.packed.get() > 0 && self.packed.get() >= cache.smallest)
            .then(|| Keeper::new(cache, key, self.all.into_inner()))
    }
}

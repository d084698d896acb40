//! Keys and values that go to disk, and come back at another start.
//!
//! The key of a file has a line for each thing that they depend on in addition to the tokens: the weights, as packs
//! name them, the config, the type of the cache, the instruction set and the variant of the rotation. A file of another
//! key is not used, so that the next logits have the same bits as if everything was read again (law 1).

use super::Engine;
use crate::kv_cache::{CachedFile, CachedPrefix};
use crate::model::pack::Key;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_platform::error::{Error, Result};
use ropechat_platform::files::{self, DiskLimits};
use std::io;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// Raised when a block's bytes mean something else than before.
const BLOCK_LAYOUT: u32 = 2;
/// Ending of the name of a file of keys and values.
const KEYS: &str = ".kv";

/// The keys and values of the beginning of a text, to write to a file while the engine goes on.
pub struct KeptPrefix {
    prefix: CachedPrefix,
    key: String,
    model: String,
}

impl KeptPrefix {
    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.prefix.tokens()
    }

    /// Writes the file at `path`, whose name ends with `.kv`; others of its folder make room for it. A file that holds as
    /// much of the same text stays as it is. Returns false when the writing was cancelled, there is no room, or another
    /// process writes the same file.
    ///
    /// # Errors
    /// Io; nothing is left then.
    pub fn write(&self, path: &Path, limits: DiskLimits, cancel: &CancelToken) -> Result<bool> {
        self.try_write(path, limits, cancel)
            .map_err(|error| Error::Io { path: path.to_owned(), what: error.to_string() })
    }

    fn try_write(&self, path: &Path, limits: DiskLimits, cancel: &CancelToken) -> io::Result<bool> {
        let folder = path.parent().unwrap_or(path);
        if self.prefix.is_in(path, &self.key) {
            return Ok(true);
        }
        files::make_private(folder)?;
        if !files::clear_parts(path)? {
            return Ok(false);
        }
        let mut others = files::entries(folder, KEYS)?;
        others.retain(|other| other != path);
        if !limits.make_room(folder, others, self.prefix.bytes() as u64)? {
            return Ok(false);
        }
        self.prefix.write(path, &self.key, &self.model, &|| !cancel.is_cancelled())
    }
}

impl Engine {
    /// Names the weights, so that keys and values can go to disk. The config's digest is of its derived `Debug`, which
    /// shows every field and each number exactly.
    pub fn set_identity(&mut self, mut identity: Key) {
        let config = format!("{:?}", self.model.config);
        identity.text += &format!("config {:032x}\n", xxh3_128(config.as_bytes()));
        self.identity = Some(identity);
    }

    /// Names everything that keys and values depend on, except the tokens and the variant of the rotation; None without
    /// an identity.
    pub fn cache_key(&self) -> Option<String> {
        let (dtype, isa) = (self.model.kv_layout.dtype.name(), self.kernels.isa().name());
        let identity = self.identity.as_ref()?;
        Some(format!("{}cache {dtype} {BLOCK_LAYOUT}\n{isa}\n", identity.text))
    }

    fn key_of(&self, ids: &[u32]) -> Option<String> {
        Some(format!("{}{:?}\n", self.cache_key()?, self.model.config.rope_variant(ids.len())))
    }

    /// What is cached of the beginning of a text; None without any of it, and for an engine without an identity.
    pub fn kept_prefix(&mut self, ids: &[u32]) -> Option<KeptPrefix> {
        let (key, model) = (self.key_of(ids)?, self.identity.as_ref()?.model.clone());
        let prefix = self.cache.find(ids, self.model.config.rope_variant(ids.len()), self.kernels);
        (prefix.tokens() > 0).then_some(KeptPrefix { prefix, key, model })
    }

    /// Tokens of the beginning of a text that are cached and that no sequence reads now.
    pub fn cached(&mut self, ids: &[u32]) -> usize {
        let rope_variant = self.model.config.rope_variant(ids.len());
        self.cache.find(ids, rope_variant, self.kernels).tokens()
    }

    /// Takes the keys and values of the beginning of a text out of a file. One that is missing, damaged or of another key
    /// leaves the cache as it is. Returns why not all of the file was used, for the user.
    ///
    /// # Errors
    /// Cancelled, Memory; what came before is taken.
    pub fn take_prefix(&mut self, ids: &[u32], path: &Path, cancel: &CancelToken) -> Result<Option<String>> {
        let Some(key) = self.key_of(ids) else { return Ok(None) };
        let rope_variant = self.model.config.rope_variant(ids.len());
        let what = match CachedFile::open(path, &key, &self.model.kv_layout) {
            Ok(Some(file)) if !self.cache.take_in(ids, rope_variant, &file, cancel)? => {
                // A block is damaged, which `KeptPrefix::write` would not notice.
                let _ = std::fs::remove_file(path);
                "damaged, and removed".to_owned()
            }
            Ok(_) => return Ok(None),
            Err(what) => what,
        };
        Ok(Some(format!("{}: {what}; the text is read again", path.display())))
    }
}

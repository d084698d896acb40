//! Cached keys and values on disk: those of the beginning of a text.
//!
//! ```text
//! | "RCKEYS\0\2" | u64: n | u64: checksum of the n bytes | n bytes: JSON | index | a block per 32 tokens | a state |
//! {"key": .., "model": .., "tokens": .., "blocks": bytes of one, "state": bytes, "index": its checksum}
//! index: a u32 per token, then the checksum of each block and of the state, a u64 each
//! ```
//!
//! Numbers are little endian. The key names everything that the blocks depend on in addition to the tokens. Positions
//! of the last block without a token are zero, so no part of another text is written. A recurrent state is that of the
//! end.

use super::block::{BLOCK, Block, KvLayout};
use super::recurrent::State;
use ropechat_kernels::kernel::Kernels;
use ropechat_platform::files;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"RCKEYS\0\x02";
/// Magic, length and checksum of the header.
const PREFIX: u64 = 24;
/// The key has a line for each file of the model, so that no header is longer.
const LONGEST_HEADER: u64 = 4 << 20;

/// Keys and values of the beginning of a text, shared with the cache: nothing is copied before it is written.
pub struct CachedPrefix {
    tokens: Vec<u32>,
    blocks: Vec<Arc<Block>>,
    state: Option<Arc<State>>,
    kernels: Kernels,
}

impl CachedPrefix {
    /// The first `tokens` of a text, which these blocks hold. With a recurrent state: whole blocks, up to the last one
    /// whose state is known.
    pub fn new(mut tokens: Vec<u32>, mut blocks: Vec<Arc<Block>>, kernels: Kernels) -> Self {
        let mut state = None;
        if blocks.first().is_some_and(|block| block.snapshot.is_some()) {
            let known = blocks[..tokens.len() / BLOCK].iter().rposition(|block| block.has_snapshot());
            blocks.truncate(known.map_or(0, |index| index + 1));
            tokens.truncate(blocks.len() * BLOCK);
            state = blocks.last().and_then(|block| block.snapshot());
        }
        Self { tokens, blocks, state, kernels }
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes of blocks and state.
    pub fn bytes(&self) -> usize {
        let state = self.state.as_ref().map_or(0, |state| state.bytes().len());
        self.blocks.iter().map(|block| block.bytes().len()).sum::<usize>() + state
    }

    /// Whether the file at `path` holds as much of the same text already; it is marked as used then.
    pub fn is_in(&self, path: &Path, key: &str) -> bool {
        let Some(block) = self.blocks.first() else { return false };
        let known = CachedFile::open(path, key, &block.layout);
        matches!(known, Ok(Some(file)) if file.tokens.starts_with(&self.tokens))
    }

    /// Writes the file at `path`, in whose place it appears whole. Returns false when `goes_on` did.
    ///
    /// # Errors
    /// Errors of the system; no partial file is left.
    pub fn write(&self, path: &Path, key: &str, model: &str, goes_on: &dyn Fn() -> bool) -> io::Result<bool> {
        files::write_whole(path, |file| self.write_to(file, key, model, goes_on))
    }

    fn write_to(
        &self,
        file: &mut File,
        key: &str,
        model: &str,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<bool> {
        let last = match self.tokens.len() % BLOCK {
            0 => None,
            rest => self.blocks.last().map(|block| block.first(rest, self.kernels)),
        };
        let last = last.transpose().map_err(|error| io::Error::other(error.to_string()))?;
        let whole = self.tokens.len() / BLOCK;
        let blocks = self.blocks[..whole].iter().map(|block| block.bytes());
        let parts: Vec<&[u8]> = blocks
            .chain(last.iter().map(Block::bytes))
            .chain(self.state.iter().map(|state| state.bytes()))
            .collect();
        let mut index: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        for part in &parts {
            if !goes_on() {
                return Ok(false);
            }
            index.extend(xxh3_64(part).to_le_bytes());
        }
        let header = json!({
            "key": key,
            "model": model,
            "tokens": self.tokens.len(),
            "blocks": self.blocks.first().map_or(0, |block| block.bytes().len()),
            "state": self.state.as_ref().map_or(0, |state| state.bytes().len()),
            "index": xxh3_64(&index),
        });
        file.write_all(&files::header_bytes(MAGIC, header.to_string().as_bytes()))?;
        file.write_all(&index)?;
        for part in parts {
            if !goes_on() {
                return Ok(false);
            }
            file.write_all(part)?;
        }
        Ok(true)
    }
}

/// A file whose header and index are checked; each block is checked when it is read.
pub struct CachedFile {
    file: File,
    /// The text whose keys and values it has.
    pub tokens: Vec<u32>,
    /// Of the blocks, then of the state.
    checksums: Vec<u64>,
    block_bytes: usize,
    has_state: bool,
    begin: u64,
}

impl CachedFile {
    /// Opens the file at `path`, if there is one, and marks it as used.
    ///
    /// # Errors
    /// What is wrong with the file: damaged, cut, or of another key.
    pub fn open(path: &Path, key: &str, layout: &KvLayout) -> Result<Option<Self>, String> {
        let is_own = match files::is_own_file(path) {
            Ok(is_own) => is_own,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if !is_own {
            return Err("not a file that only its owner can write".to_owned());
        }
        let file = File::open(path).map_err(|error| error.to_string())?;
        let len = file.metadata().map_err(|error| error.to_string())?.len();
        let header = files::read_header(&file, MAGIC, LONGEST_HEADER)
            .ok_or("the header is damaged, or of another version")?;
        if header["key"] != key {
            return Err("from another model, version, type or instruction set".to_owned());
        }
        let opened = Self::check(file, len, &header, layout)?;
        // The least recently used file is removed first; on a file system without times the order is arbitrary.
        let _ = opened.file.set_modified(SystemTime::now());
        Ok(Some(opened))
    }

    /// Reads the index of a file whose header has the right key and checksum.
    fn check(mut file: File, len: u64, header: &Value, layout: &KvLayout) -> Result<Self, String> {
        let number = |name: &str| header[name].as_u64().ok_or("the header is damaged");
        let (tokens, block_bytes, state_bytes) = (number("tokens")?, number("blocks")?, number("state")?);
        if block_bytes != layout.block_bytes() as u64
            || (state_bytes != 0 && state_bytes != layout.recurrent.bytes() as u64)
            || (state_bytes == 0) != (layout.recurrent.layers == 0)
            || tokens == 0
            || (state_bytes > 0 && !tokens.is_multiple_of(BLOCK as u64))
        {
            return Err("the header does not fit this model".to_owned());
        }
        let blocks = tokens.div_ceil(BLOCK as u64);
        let sums = blocks + u64::from(state_bytes > 0);
        let begin = file.stream_position().map_err(|error| error.to_string())?;
        let sizes = [(tokens, 4), (sums, 8), (blocks, block_bytes), (1, state_bytes)];
        let end =
            sizes.iter().try_fold(begin, |end, &(count, size)| end.checked_add(count.checked_mul(size)?));
        if end != Some(len) || begin < PREFIX {
            return Err("the file is truncated, or longer than its header says".to_owned());
        }
        // Both are smaller than the file now, but may be larger than the memory.
        let bytes = usize::try_from(tokens * 4 + sums * 8).map_err(|_| "too large")?;
        let mut index = Vec::new();
        index.try_reserve_exact(bytes).map_err(|_| "the index does not fit in memory")?;
        index.resize(bytes, 0);
        file.read_exact(&mut index).map_err(|error| error.to_string())?;
        if xxh3_64(&index) != number("index")? {
            return Err("the index is damaged".to_owned());
        }
        let (ids, checksums) = index.split_at(bytes - sums as usize * 8);
        Ok(Self {
            tokens: ids.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect(),
            checksums: checksums.as_chunks::<8>().0.iter().map(|sum| u64::from_le_bytes(*sum)).collect(),
            block_bytes: layout.block_bytes(),
            has_state: state_bytes > 0,
            begin: begin + bytes as u64,
            file,
        })
    }

    /// Whether a recurrent state belongs to the end of the tokens.
    pub fn has_state(&self) -> bool {
        self.has_state
    }

    /// Reads block number `index`, or the state behind the last one. Returns false where the file is damaged.
    pub(super) fn read(&self, index: usize, bytes: &mut [u8]) -> bool {
        let place = SeekFrom::Start(self.begin + index as u64 * self.block_bytes as u64);
        let mut file = &self.file;
        file.seek(place).and_then(|_| file.read_exact(bytes)).is_ok()
            && self.checksums.get(index) == Some(&xxh3_64(bytes))
    }
}

//! The KV cache and what is kept in it: a sequence goes on from the longest prefix that another one has computed.

use super::sequence::Sequence;
use crate::config::RopeVariant;
use crate::kv_cache::{BLOCK, Block, CachedFile, CachedPrefix, KvCache, KvSequence, Place, PrefixTree};
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::kernel::Kernels;
use ropechat_platform::error::{Error, Result};

/// Least bytes that are kept of ended sequences, for any context.
const LEAST_KEPT: usize = 64 << 20;

/// Keys and values of all sequences. Whole blocks are in the tree as soon as they are computed.
pub(super) struct ReusableCache {
    pub kv: KvCache,
    tree: PrefixTree,
    /// Bytes of ended sequences that are kept at most.
    most_kept: usize,
    /// Whether sequences share keys and values; not where these depend on more than the tokens before.
    reuses: bool,
}

impl ReusableCache {
    /// A cache that keeps as much of ended sequences as one of `context` tokens takes, and at least 64 MB. reuses: whether
    /// sequences share keys and values.
    pub fn new(kv: KvCache, context: usize, reuses: bool) -> Self {
        let block_bytes = kv.layout().block_bytes();
        let most_kept = context.div_ceil(BLOCK).saturating_mul(block_bytes).max(LEAST_KEPT);
        Self { kv, tree: PrefixTree::new(block_bytes), most_kept, reuses }
    }

    /// Sets how many bytes of ended sequences are kept at most.
    pub fn set_most_kept(&mut self, bytes: usize) {
        self.most_kept = bytes;
        self.evict();
    }

    /// A place before the first token, for a sequence to come.
    pub fn enter(&mut self, rope_variant: RopeVariant) -> Place {
        self.tree.enter(rope_variant)
    }

    /// Takes the keys and values that other sequences computed for tokens that this sequence has yet to prefill. `live`: the
    /// sequences in progress, whose blocks may be incomplete.
    pub fn adopt<'a>(&mut self, sequence: &mut Sequence, live: impl Iterator<Item = &'a Sequence>) {
        let before = sequence.cache.len();
        if !self.reuses || sequence.place.blocks() != before / BLOCK {
            return; // its blocks are not in the tree: see `index`
        }
        // With a recurrent state the sequence can go on only from a position whose state is known.
        let has_state = self.kv.layout().recurrent.layers > 0;
        let most = match has_state {
            true => {
                before / BLOCK + self.tree.blocks_to(&sequence.place, sequence.unread(), Block::has_snapshot)
            }
            false => usize::MAX,
        };
        while sequence.place.blocks() < most
            && let Some(&tokens) = sequence.unread().first_chunk::<BLOCK>()
        {
            let index = sequence.place.blocks();
            let Some(block) = self.tree.follow(&mut sequence.place, &tokens) else { break };
            self.kv.share(&mut sequence.cache, index, &block, (index + 1) * BLOCK);
        }
        if has_state {
            if sequence.cache.len() > before {
                self.kv.restore(&mut sequence.cache);
            }
            sequence.reused += sequence.cache.len() - before;
            return;
        }
        let (index, unread) = (sequence.place.blocks(), sequence.unread());
        let part = &unread[..unread.len().min(BLOCK)];
        let filling = live.filter(|other| other.place.is_at(&sequence.place)).filter_map(|other| {
            let cached = &other.ids[index * BLOCK..other.cache.len()];
            let count = part.iter().zip(cached).take_while(|(a, b)| a == b).count();
            Some((other.cache.blocks().get(index)?.clone(), count))
        });
        let found = self.tree.best_part(&sequence.place, part);
        let best = filling.chain(found).max_by_key(|&(_, count)| count);
        if let Some((block, count)) = best.filter(|(_, count)| index * BLOCK + count > sequence.cache.len()) {
            self.kv.share(&mut sequence.cache, index, &block, index * BLOCK + count);
        }
        sequence.reused += sequence.cache.len() - before;
    }

    /// Puts the whole blocks of a sequence into the tree. Where another one has put the same tokens, its block serves both.
    pub fn index(&mut self, sequence: &mut Sequence) {
        let Sequence { ids, cache, place, .. } = sequence;
        while self.reuses && (place.blocks() + 1) * BLOCK <= cache.len() {
            let index = place.blocks();
            let tokens = &ids[index * BLOCK..][..BLOCK];
            if let Some(block) = self.tree.insert(place, tokens, &cache.blocks()[index]) {
                self.kv.replace(cache, index, &block);
            }
        }
    }

    /// Goes back to the first `len` tokens of a sequence, as far as that is known with a recurrent state.
    pub fn rewind(&mut self, sequence: &mut Sequence, len: usize) {
        if sequence.cache.len() <= len {
            return;
        }
        self.kv.truncate(&mut sequence.cache, len);
        let blocks = sequence.cache.len() / BLOCK;
        if sequence.place.blocks() > blocks {
            let mut place = self.tree.enter(sequence.rope_variant);
            for tokens in sequence.ids.chunks_exact(BLOCK).take(blocks) {
                self.tree.follow(&mut place, tokens);
            }
            self.leave(std::mem::replace(&mut sequence.place, place));
        }
    }

    /// Drops what is cached of a sequence whose keys need another rotation from now on.
    pub fn restart(&mut self, sequence: &mut Sequence, rope_variant: RopeVariant) {
        self.kv.truncate(&mut sequence.cache, 0);
        let place = self.tree.enter(rope_variant);
        self.leave(std::mem::replace(&mut sequence.place, place));
        (sequence.rope_variant, sequence.reused) = (rope_variant, 0);
    }

    /// What is cached of the beginning of a text that no sequence reads now.
    pub fn find(&mut self, ids: &[u32], rope_variant: RopeVariant, kernels: Kernels) -> CachedPrefix {
        let mut place = self.tree.enter(rope_variant);
        let (mut blocks, mut tokens) = (Vec::new(), 0);
        for part in ids.chunks(BLOCK) {
            if let Some(block) = self.tree.follow(&mut place, part) {
                blocks.push(block);
                tokens += BLOCK;
            } else {
                if let Some((block, count)) = self.tree.best_part(&place, part) {
                    blocks.push(block);
                    tokens += count;
                }
                break;
            }
        }
        self.leave(place);
        CachedPrefix::new(ids[..tokens].to_vec(), blocks, kernels)
    }

    /// Takes blocks of the beginning of a text out of a file, as far as they are not cached. Returns false where the file
    /// is damaged; what comes before is taken.
    ///
    /// # Errors
    /// Cancelled, Memory; what came before is taken.
    pub fn take_in(
        &mut self,
        ids: &[u32],
        rope_variant: RopeVariant,
        file: &CachedFile,
        cancel: &CancelToken,
    ) -> Result<bool> {
        let common = ids.iter().zip(&file.tokens).take_while(|(a, b)| a == b).count();
        if file.has_state() && common < file.tokens.len() {
            return Ok(true); // its only recurrent state is that of another text
        }
        let mut place = self.tree.enter(rope_variant);
        let result = self.follow_file(&mut place, file, common, cancel);
        self.leave(place);
        result
    }

    fn follow_file(
        &mut self,
        place: &mut Place,
        file: &CachedFile,
        common: usize,
        cancel: &CancelToken,
    ) -> Result<bool> {
        let mut last = None;
        for (index, part) in file.tokens[..common].chunks(BLOCK).enumerate() {
            last = self.tree.follow(place, part);
            if last.is_some() {
                continue;
            }
            let is_known = |(_, count): (_, usize)| count == part.len();
            if part.len() < BLOCK && self.tree.best_part(place, part).is_some_and(is_known) {
                break;
            }
            cancel.check()?;
            let Some(block) = self.with_room(|kv| kv.read_block(file, index))? else { return Ok(false) };
            let rest = &file.tokens[index * BLOCK..];
            match rest.first_chunk::<BLOCK>() {
                Some(whole) => drop(self.tree.insert(place, whole, &block)),
                None => self.tree.insert_tail(place, rest, &block),
            }
            last = Some(block);
        }
        match last.filter(|block| file.has_state() && !block.has_snapshot()) {
            Some(block) => self.with_room(|kv| kv.read_state(file, &block)),
            None => Ok(true),
        }
    }

    /// Does what needs memory; when that is short, what is kept of ended sequences is released first.
    fn with_room<T>(&mut self, mut work: impl FnMut(&mut KvCache) -> Result<T>) -> Result<T> {
        loop {
            match work(&mut self.kv) {
                Err(Error::Memory { what }) => match self.tree.evict() {
                    Some(block) => self.kv.release_block(block),
                    None => return Err(Error::Memory { what }),
                },
                result => return result,
            }
        }
    }

    /// Keeps the blocks of a sequence that ended.
    pub fn retain(&mut self, sequence: Sequence) {
        let Sequence { ids, cache, place, .. } = sequence;
        let whole = place.blocks();
        if self.reuses
            && let Some(block) = cache.blocks().get(whole)
            && cache.len() < (whole + 1) * BLOCK
        {
            self.tree.insert_tail(&place, &ids[whole * BLOCK..cache.len()], block);
        }
        self.kv.release(cache);
        self.leave(place);
    }

    fn leave(&mut self, place: Place) {
        self.tree.leave(place);
        self.evict();
    }

    /// Releases the least recently used blocks beyond what is kept.
    fn evict(&mut self) {
        while self.tree.idle_bytes() > self.most_kept
            && let Some(block) = self.tree.evict()
        {
            self.kv.release_block(block);
        }
    }

    /// Reserves `rows` positions.
    pub fn reserve(&mut self, cache: &mut KvSequence, rows: usize) -> Result<()> {
        self.with_room(|kv| kv.reserve(cache, rows))
    }
}

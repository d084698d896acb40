//! Keys and values by position: a sequence is a list of blocks of 32 positions, which are shared until one is written.
//!
//! A block is also a tile of attention, and a head's keys and values are panels of the matmul kernel:
//! keys `[2 panels of 16 positions][head_dim][16]`, so that scores are a matmul over head_dim, and
//! values `[panels of 16 dimensions][32 positions][16]`, so that the weighted sum is a matmul over positions.
//! In q8_0 they are signed bytes in the same order, with a scale per position and 32 dimensions behind each matrix, and keys
//! are rotated ([`rotate`]); attention dequantizes one tile at a time. In bf16 a step is a pair: keys `[2][head_dim / 2][16][2]`, values
//! `[panels][16 pairs of positions][16][2]`.
//!
//! Law 3: a forward pass writes beyond `len` only, and [`KvSequence::commit`] moves `len` at its end, so a cancelled one
//! leaves no trace. Sequences share blocks, which [`PrefixTree`] finds by their tokens; [`KvCache::reserve`] copies a shared
//! last block before it is written.
//!
//! Layers without keys and values have a recurrent state ([`recurrent`]), which belongs to one length. A sequence goes back,
//! or on from another one's blocks, to the longest length whose state is known; what is missing is computed again.

mod block;
mod file;
mod prefix_tree;
mod recurrent;
mod rotation;

pub use block::{BLOCK, Block, KvLayout};
pub use file::{CachedFile, CachedPrefix};
pub use prefix_tree::{Place, PrefixTree};
pub use recurrent::RecurrentLayout;
pub use rotation::rotate;

use recurrent::{RecurrentSequence, State, StateStore};
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::Result;
use ropechat_platform::memory::Buffer;
use std::sync::Arc;

/// The cached positions of one sequence.
#[derive(Default)]
pub struct KvSequence {
    blocks: Vec<Arc<Block>>,
    len: usize,
    /// The state of the layers without keys and values, from the first [`KvCache::reserve`] on.
    recurrent: Option<Box<RecurrentSequence>>,
}

impl KvSequence {
    /// Positions that are cached.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The blocks, the last one partly filled.
    pub fn blocks(&self) -> &[Arc<Block>] {
        &self.blocks
    }

    /// Whether a layer's keys are rotated; a query that is multiplied with them must be too.
    pub fn has_rotated_keys(&self, layer: usize) -> bool {
        self.blocks.first().is_some_and(|block| block.has_rotated_keys(layer))
    }

    /// The type of keys and values; F32 where there is no block yet.
    pub fn dtype(&self) -> PackedType {
        self.blocks.first().map_or(PackedType::F32, |block| block.dtype())
    }

    /// The blocks from the one that holds position `len` on, to write (after [`KvCache::reserve`]).
    pub fn writable(&mut self) -> impl Iterator<Item = &mut Block> {
        self.blocks[self.len / BLOCK..].iter_mut().filter_map(Arc::get_mut)
    }

    /// Counts `n` more positions as cached, at the end of the forward pass that wrote them.
    pub fn commit(&mut self, n: usize) {
        assert!(self.len + n <= self.blocks.len() * BLOCK, "committed beyond what was reserved");
        self.len += n;
        if let Some(recurrent) = &mut self.recurrent {
            let ended = self.len.is_multiple_of(BLOCK).then(|| &self.blocks[self.len / BLOCK - 1]);
            recurrent.commit(ended.and_then(|block| block.snapshot.as_ref()), n < BLOCK);
        }
    }

    /// Counts the first `n` of `written` positions as cached. A recurrent state is known only behind all of them: where some
    /// are left out, none is counted, and the first `n` have to be computed again.
    pub fn commit_first(&mut self, n: usize, written: usize) {
        match &mut self.recurrent {
            Some(recurrent) if n < written => recurrent.rollback(),
            _ => self.commit(n),
        }
    }

    /// Whether it has a recurrent state (after [`KvCache::reserve`]).
    pub fn has_state(&self) -> bool {
        self.recurrent.is_some()
    }

    /// The committed recurrent state of a layer (None: zeros), and the one to write.  // [layer_values] each
    pub fn recurrent_layer(&mut self, layer: usize) -> (Option<&[f32]>, &mut [f32]) {
        self.recurrent.as_mut().expect("the caller reserved room for the state").layer(layer)
    }

    /// Remembers the recurrent state of this length until the next call, so that the sequence can go back to it.
    pub fn mark(&mut self) {
        if let Some(recurrent) = &mut self.recurrent {
            recurrent.mark(self.len);
        }
    }

    /// The length that [`KvCache::truncate`] goes back to for `len`.
    pub fn known_to(&self, len: usize) -> usize {
        self.restorable(len.min(self.len)).0
    }

    /// The longest length up to `len` whose recurrent state is known, and that state.
    fn restorable(&self, len: usize) -> (usize, Option<Arc<State>>) {
        let Some(recurrent) = &self.recurrent else { return (len, None) };
        if len == self.len {
            return (len, recurrent.current());
        }
        let ends = self.blocks[..len / BLOCK].iter().enumerate().rev();
        let known =
            |(index, block): (usize, &Arc<Block>)| Some(((index + 1) * BLOCK, Some(block.snapshot()?)));
        let at_a_border = ends.filter_map(known).next().unwrap_or((0, None));
        match recurrent.marked() {
            Some((marked, state)) if (at_a_border.0..=len).contains(&marked) => (marked, Some(state)),
            _ => at_a_border,
        }
    }
}

/// Allocates blocks and reuses released ones.
pub struct KvCache {
    layout: KvLayout,
    /// The recurrent states of all sequences; None where the model has none.
    states: Option<Arc<StateStore>>,
    free: Vec<Block>,
    /// Every block holds one reference, so blocks are counted correctly on every drop, also in a panic.
    allocated: Arc<()>,
}

impl KvCache {
    /// An empty cache.
    pub fn new(layout: KvLayout) -> Self {
        let has_state = layout.recurrent.layers > 0;
        let states = has_state.then(|| Arc::new(StateStore::new(layout.recurrent)));
        Self { layout, states, free: Vec::new(), allocated: Arc::new(()) }
    }

    /// The layout of a block.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Bytes of all blocks, in use or kept for reuse, and of all recurrent states.
    pub fn bytes(&self) -> usize {
        let states = self.states.as_ref().map_or(0, |states| states.bytes());
        (Arc::strong_count(&self.allocated) - 1) * self.layout.block_bytes() + states
    }

    /// Makes `n` positions after `len` writable: appends blocks and copies the last one if it is shared.
    ///
    /// # Errors
    /// Memory; the sequence is then as it was.
    pub fn reserve(&mut self, sequence: &mut KvSequence, n: usize) -> Result<()> {
        let before = sequence.blocks.len();
        let result = self.try_reserve(sequence, n);
        if result.is_err() {
            self.shrink(sequence, before);
        }
        result
    }

    fn try_reserve(&mut self, sequence: &mut KvSequence, n: usize) -> Result<()> {
        let first = sequence.len / BLOCK;
        if let Some(last) = sequence.blocks.get_mut(first)
            && Arc::get_mut(last).is_none()
        {
            let mut copy = self.block()?;
            copy.data.bytes_mut().copy_from_slice(last.data.bytes());
            *last = Arc::new(copy);
        }
        // What the block ended with is not its end any more.
        if let Some(block) = sequence.blocks.get(first) {
            block.forget_snapshot();
        }
        if let Some(states) = &self.states {
            let new = || Box::new(RecurrentSequence::new(states, None));
            sequence.recurrent.get_or_insert_with(new).reserve()?;
        }
        while sequence.blocks.len() * BLOCK < sequence.len + n {
            let block = self.block()?;
            sequence.blocks.push(Arc::new(block));
        }
        Ok(())
    }

    fn block(&mut self) -> Result<Block> {
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        let data = Buffer::zeroed(self.layout.block_bytes(), "the KV cache")?;
        let snapshot = self.states.is_some().then(Default::default);
        let layout = self.layout.clone();
        Ok(Block { layout, data, snapshot, _allocated: Arc::clone(&self.allocated) })
    }

    /// Removes what [`KvCache::reserve`] added and nobody committed.
    pub fn rollback(&mut self, sequence: &mut KvSequence) {
        if let Some(recurrent) = &mut sequence.recurrent {
            recurrent.rollback();
        }
        self.shrink(sequence, sequence.len.div_ceil(BLOCK));
    }

    /// Removes the positions from `len` on; with a recurrent state also those behind the last snapshot before `len`.
    pub fn truncate(&mut self, sequence: &mut KvSequence, len: usize) {
        let (len, state) = sequence.restorable(len.min(sequence.len));
        sequence.len = len;
        if let Some(recurrent) = &mut sequence.recurrent {
            recurrent.restore(state, len);
        }
        self.rollback(sequence);
    }

    /// Ends a sequence with a block that another one filled, in place of its own blocks from there on: block number
    /// `index`, whose first positions are cached up to `len`. [`KvCache::restore`] restores a recurrent state.
    pub fn share(&mut self, sequence: &mut KvSequence, index: usize, block: &Arc<Block>, len: usize) {
        assert!(
            index * BLOCK <= sequence.len && (1..=BLOCK).contains(&(len - index * BLOCK)),
            "a gap in the cache"
        );
        self.shrink(sequence, index);
        sequence.blocks.push(Arc::clone(block));
        sequence.len = len;
    }

    /// Takes up the recurrent state at the end of a sequence's last block, which has a snapshot.
    pub fn restore(&mut self, sequence: &mut KvSequence) {
        let Some(states) = &self.states else { return };
        let state = sequence.blocks.last().and_then(|block| block.snapshot());
        assert!(sequence.len.is_multiple_of(BLOCK) && state.is_some(), "the last block has a snapshot");
        sequence.recurrent = Some(Box::new(RecurrentSequence::new(states, state)));
    }

    /// Takes a block that holds the same in place of a sequence's own, with the snapshot that only that one has.
    pub fn replace(&mut self, sequence: &mut KvSequence, index: usize, block: &Arc<Block>) {
        let own = std::mem::replace(&mut sequence.blocks[index], Arc::clone(block));
        if let (Some(states), Some(slot), Some(state)) = (&self.states, &block.snapshot, own.snapshot())
            && !block.has_snapshot()
        {
            states.keep(slot, &state);
        }
        self.release_block(own);
    }

    /// Block number `index` of a file; None where that is damaged.
    ///
    /// # Errors
    /// Memory.
    pub fn read_block(&mut self, file: &CachedFile, index: usize) -> Result<Option<Arc<Block>>> {
        let mut block = self.block()?;
        // A damaged block may contain anything: it is dropped, not used again.
        Ok(file.read(index, block.bytes_mut()).then(|| Arc::new(block)))
    }

    /// Reads the recurrent state of a file, that at the end of its last block. Returns false where it is damaged.
    ///
    /// # Errors
    /// Memory.
    pub fn read_state(&mut self, file: &CachedFile, last: &Block) -> Result<bool> {
        let (Some(states), Some(slot)) = (&self.states, &last.snapshot) else { return Ok(true) };
        let state = states.read(|bytes| file.read(file.tokens.len() / BLOCK, bytes))?;
        if let Some(state) = &state {
            states.keep(slot, state);
        }
        Ok(state.is_some())
    }

    /// Releases a sequence's blocks.
    pub fn release(&mut self, mut sequence: KvSequence) {
        self.shrink(&mut sequence, 0);
    }

    /// Releases one reference to a block; the last one makes it free.
    pub fn release_block(&mut self, block: Arc<Block>) {
        if let Some(block) = Arc::into_inner(block) {
            block.forget_snapshot();
            self.free.push(block);
        }
    }

    fn shrink(&mut self, sequence: &mut KvSequence, blocks: usize) {
        for block in sequence.blocks.split_off(blocks.min(sequence.blocks.len())) {
            self.release_block(block);
        }
    }

    /// Gives the memory of unused blocks back to the system.
    pub fn trim(&mut self) {
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::block::KvLayer;
    use super::*;
    use ropechat_kernels::kernel::{Isa, Kernels, LANES};
    use ropechat_kernels::quant::PackedType;

    fn layout() -> KvLayout {
        KvLayout::of_layers([KvLayer::new(1, 4, 4)].into_iter(), PackedType::F32)
    }

    fn write(cache: &mut KvCache, sequence: &mut KvSequence, value: f32) {
        cache.reserve(sequence, 1).unwrap();
        let position = sequence.len() % BLOCK;
        let kernels = Kernels::of(Isa::Scalar).unwrap();
        sequence.writable().next().unwrap().write(0, 0, position, &[value; 4], &[-value; 4], kernels);
        sequence.commit(1);
    }

    fn keys(sequence: &KvSequence) -> Vec<f32> {
        (0..sequence.len())
            .map(|p| {
                let at = (p % BLOCK / LANES * 4 * LANES + p % LANES) * 4;
                let bytes = sequence.blocks()[p / BLOCK].keys(0, 0);
                f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
            })
            .collect()
    }

    #[test]
    fn sequences_share_blocks_until_one_of_them_writes() {
        let mut cache = KvCache::new(layout());
        let mut a = KvSequence::default();
        for i in 0..40 {
            write(&mut cache, &mut a, i as f32);
        }
        let mut b = KvSequence::default();
        for (index, (block, len)) in a.blocks().iter().zip([32, 35]).enumerate() {
            cache.share(&mut b, index, block, len);
        }
        assert_eq!(cache.bytes(), 2 * layout().block_bytes());
        write(&mut cache, &mut b, 100.0);
        write(&mut cache, &mut a, 200.0);
        assert_eq!(cache.bytes(), 3 * layout().block_bytes());
        let expected: Vec<f32> = (0..40).map(|i| i as f32).collect();
        assert_eq!(keys(&a), [&expected[..], &[200.0]].concat());
        assert_eq!(keys(&b), [&expected[..35], &[100.0]].concat());
        cache.release(a);
        cache.truncate(&mut b, 3);
        assert_eq!(keys(&b), expected[..3]);
        let mut c = KvSequence::default();
        for _ in 0..64 {
            write(&mut cache, &mut c, 1.0);
        }
        assert_eq!(cache.bytes(), 3 * layout().block_bytes(), "released blocks are used again");
    }

    #[test]
    fn blocks_are_counted_while_they_live() {
        let mut cache = KvCache::new(layout());
        let (mut a, mut lost) = (KvSequence::default(), KvSequence::default());
        cache.reserve(&mut a, 3 * BLOCK).unwrap();
        cache.reserve(&mut lost, 2 * BLOCK).unwrap();
        assert_eq!(cache.bytes(), 5 * layout().block_bytes());
        drop(lost); // as a panic does
        cache.trim();
        assert_eq!(cache.bytes(), 3 * layout().block_bytes());
        cache.release(a);
        assert_eq!(cache.bytes(), 3 * layout().block_bytes(), "kept for reuse");
        cache.trim();
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn what_is_not_committed_leaves_no_trace() {
        let mut cache = KvCache::new(layout());
        let mut a = KvSequence::default();
        write(&mut cache, &mut a, 1.0);
        let mut other = KvSequence::default();
        cache.share(&mut other, 0, &a.blocks()[0], 1);
        cache.reserve(&mut a, 100).unwrap();
        for block in a.writable() {
            block.write(0, 0, 7, &[9.0; 4], &[9.0; 4], Kernels::of(Isa::Scalar).unwrap());
        }
        cache.rollback(&mut a);
        assert_eq!((a.len(), a.blocks().len()), (1, 1));
        assert_eq!((keys(&a), keys(&other)), (vec![1.0], vec![1.0]));
    }
}

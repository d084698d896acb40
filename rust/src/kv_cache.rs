//! Keys and values by position: a sequence is a list of blocks of 32 positions, shared until written.
//!
//! A block is at the same time a tile of attention, and a head's two matrices are panels of the matmul kernel:
//! keys `[2 panels of 16 positions][head_dim][16]`, so that scores are a product over head_dim, and
//! values `[panels of 16 dimensions][32 positions][16]`, so that the weighted sum is a product over positions.
//!
//! Law 3: a forward writes beyond `len` only, and [`KvSequence::commit`] moves `len` at its end, so a cancelled forward
//! leaves no trace. Forks share blocks; [`KvCache::reserve`] copies a shared last block before it is written.

use crate::buffer::Buffer;
use crate::config::Config;
use crate::error::Result;
use crate::kernel::{Kernels, LANES};
use crate::quant::DType;
use std::sync::Arc;

/// Positions per block, and per tile of attention.
pub const BLOCK: usize = 2 * LANES;

/// What a block looks like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvLayout {
    /// Layers.
    pub layers: usize,
    /// `num_key_value_heads`.
    pub heads: usize,
    /// Width of a key: `head_dim`.
    pub head_dim: usize,
    /// Width of a value: `v_head_dim`.
    pub value_dim: usize,
    /// F32 or F16.
    pub dtype: DType,
}

impl KvLayout {
    /// The layout of a model's cache in `dtype` (F32 or F16).
    pub fn new(config: &Config, dtype: DType) -> Self {
        let (layers, heads) = (config.layers.len(), config.num_key_value_heads);
        Self { layers, heads, head_dim: config.head_dim, value_dim: config.v_head_dim, dtype }
    }

    /// `value_dim` up to whole panels.
    pub fn padded_value_dim(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    fn key_values(&self) -> usize {
        BLOCK * self.head_dim
    }

    fn value_values(&self) -> usize {
        BLOCK * self.padded_value_dim()
    }

    /// Values of one layer in one block: the keys of all heads, then their values.
    fn layer_values(&self) -> usize {
        self.heads * (self.key_values() + self.value_values())
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.layer_values() * self.dtype.row_bytes(1)
    }

    fn keys_at(&self, layer: usize, head: usize) -> usize {
        layer * self.layer_values() + head * self.key_values()
    }

    fn values_at(&self, layer: usize, head: usize) -> usize {
        layer * self.layer_values() + self.heads * self.key_values() + head * self.value_values()
    }
}

/// Keys and values of 32 positions in every layer.
pub struct Block {
    layout: KvLayout,
    data: Buffer,
}

impl Block {
    /// Key panels of a head.  // [2][head_dim][16]
    pub fn keys(&self, layer: usize, head: usize) -> &[u8] {
        let size = self.layout.dtype.row_bytes(1);
        &self.data.bytes()[self.layout.keys_at(layer, head) * size..][..self.layout.key_values() * size]
    }

    /// Value panels of a head.  // [padded_value_dim / 16][32][16]
    pub fn values(&self, layer: usize, head: usize) -> &[u8] {
        let size = self.layout.dtype.row_bytes(1);
        &self.data.bytes()[self.layout.values_at(layer, head) * size..][..self.layout.value_values() * size]
    }

    /// Stores the key and the value of a head at `slot` of this block.  // key [head_dim], value [value_dim]
    pub fn write(
        &mut self,
        layer: usize,
        head: usize,
        slot: usize,
        key: &[f32],
        value: &[f32],
        kernels: Kernels,
    ) {
        let (keys_at, values_at) = (self.layout.keys_at(layer, head), self.layout.values_at(layer, head));
        match self.layout.dtype {
            DType::F16 => {
                let mut rounded = [0; 512];
                for (at, source, is_key) in [(keys_at, key, true), (values_at, value, false)] {
                    for (first, part) in (0..).step_by(512).zip(source.chunks(512)) {
                        kernels.to_f16(part, &mut rounded[..part.len()]);
                        place(
                            &mut self.data.values_mut()[at..],
                            &rounded[..part.len()],
                            first,
                            slot,
                            is_key,
                            source.len(),
                        );
                    }
                }
            }
            _ => {
                let values: &mut [f32] = self.data.values_mut();
                place(&mut values[keys_at..], key, 0, slot, true, key.len());
                place(&mut values[values_at..], value, 0, slot, false, value.len());
            }
        }
    }
}

/// Puts dimensions `first..` of a head at `slot`, into key panels or value panels.
fn place<T: Copy>(panels: &mut [T], source: &[T], first: usize, slot: usize, is_key: bool, head_dim: usize) {
    for (d, &x) in (first..).zip(source) {
        let at = if is_key {
            (slot / LANES * head_dim + d) * LANES + slot % LANES
        } else {
            (d / LANES * BLOCK + slot) * LANES + d % LANES
        };
        panels[at] = x;
    }
}

/// The cached positions of one sequence.
#[derive(Default)]
pub struct KvSequence {
    blocks: Vec<Arc<Block>>,
    len: usize,
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

    /// The blocks from the one that holds position `len` on, to write (after [`KvCache::reserve`]).
    pub fn writable(&mut self) -> impl Iterator<Item = &mut Block> {
        self.blocks[self.len / BLOCK..].iter_mut().filter_map(Arc::get_mut)
    }

    /// Counts `n` more positions as cached: the end of a forward that wrote them.
    pub fn commit(&mut self, n: usize) {
        self.len += n;
        assert!(self.len <= self.blocks.len() * BLOCK, "committed beyond what was reserved");
    }
}

/// Where blocks come from and go to.
pub struct KvCache {
    layout: KvLayout,
    free: Vec<Block>,
    allocated: usize,
}

impl KvCache {
    /// An empty cache.
    pub fn new(layout: KvLayout) -> Self {
        Self { layout, free: Vec::new(), allocated: 0 }
    }

    /// What a block looks like.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Bytes of all blocks, in use or kept for reuse.
    pub fn bytes(&self) -> usize {
        self.allocated * self.layout.block_bytes()
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
        self.allocated += 1;
        Ok(Block { layout: self.layout, data })
    }

    /// Forgets what [`KvCache::reserve`] added and nobody committed.
    pub fn rollback(&mut self, sequence: &mut KvSequence) {
        self.shrink(sequence, sequence.len.div_ceil(BLOCK));
    }

    /// Forgets the positions from `len` on.
    pub fn truncate(&mut self, sequence: &mut KvSequence, len: usize) {
        sequence.len = len.min(sequence.len);
        self.rollback(sequence);
    }

    /// A second sequence with the same first `len` positions, sharing their blocks.
    pub fn fork(&self, sequence: &KvSequence, len: usize) -> KvSequence {
        let len = len.min(sequence.len);
        KvSequence { blocks: sequence.blocks[..len.div_ceil(BLOCK)].to_vec(), len }
    }

    /// Takes a sequence's blocks back.
    pub fn release(&mut self, mut sequence: KvSequence) {
        self.shrink(&mut sequence, 0);
    }

    fn shrink(&mut self, sequence: &mut KvSequence, blocks: usize) {
        for block in sequence.blocks.drain(blocks.min(sequence.blocks.len())..) {
            // A block that another sequence shares stays with it.
            if let Some(block) = Arc::into_inner(block) {
                self.free.push(block);
            }
        }
    }

    /// Gives the memory of unused blocks back to the system.
    pub fn trim(&mut self) {
        self.allocated -= self.free.len();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Isa;

    fn layout() -> KvLayout {
        KvLayout { layers: 1, heads: 1, head_dim: 4, value_dim: 4, dtype: DType::F32 }
    }

    fn write(cache: &mut KvCache, sequence: &mut KvSequence, value: f32) {
        cache.reserve(sequence, 1).unwrap();
        let slot = sequence.len() % BLOCK;
        let kernels = Kernels::of(Isa::Scalar).unwrap();
        sequence.writable().next().unwrap().write(0, 0, slot, &[value; 4], &[-value; 4], kernels);
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
    fn a_fork_shares_blocks_until_either_side_writes() {
        let mut cache = KvCache::new(layout());
        let mut a = KvSequence::default();
        for i in 0..40 {
            write(&mut cache, &mut a, i as f32);
        }
        let mut b = cache.fork(&a, 35);
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
    fn what_is_not_committed_leaves_no_trace() {
        let mut cache = KvCache::new(layout());
        let mut a = KvSequence::default();
        write(&mut cache, &mut a, 1.0);
        let other = cache.fork(&a, 1);
        cache.reserve(&mut a, 100).unwrap();
        for block in a.writable() {
            block.write(0, 0, 7, &[9.0; 4], &[9.0; 4], Kernels::of(Isa::Scalar).unwrap());
        }
        cache.rollback(&mut a);
        assert_eq!((a.len(), a.blocks().len()), (1, 1));
        assert_eq!((keys(&a), keys(&other)), (vec![1.0], vec![1.0]));
    }
}

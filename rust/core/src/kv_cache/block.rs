//! A block: keys and values of 32 positions in every layer, as panels of the matmul kernel.

use super::recurrent::{RecurrentLayout, Slot, State};
use super::rotation::rotate;
use crate::config::Config;
use ropechat_kernels::kernel::{Kernels, LANES, q8_parts, x_row_bytes};
use ropechat_kernels::quant::{self, PackedType};
use ropechat_platform::error::Result;
use ropechat_platform::memory::Buffer;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// Positions per block, and per tile of attention.
pub const BLOCK: usize = 2 * LANES;

/// The number of queries from which keys and values in f16 are widened to f32 once for all queries: more than two tiles of rows
/// on any instruction set.
const WIDEN_FROM_QUERIES: usize = 32;

/// The layout of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct KvLayout {
    /// F32, F16, BF16 or Q8_0.
    pub dtype: PackedType,
    /// The state of the layers without keys and values.
    pub recurrent: RecurrentLayout,
    layers: Arc<[KvLayer]>,
    /// Bytes of one block.
    bytes: usize,
}

/// Keys and values of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct KvLayer {
    heads: usize,
    head_dim: usize,
    value_dim: usize,
    /// Whether a value is the last columns of its key, and not stored beside it.
    values_in_keys: bool,
    /// Values that a mechanism keeps beside a key: that of an indexer, or the numbers of a dynamic mask.
    index_dim: usize,
    /// Where its keys start in a block.
    start: usize,
}

impl KvLayout {
    /// The layout of a model's cache in `dtype` (F32, F16, BF16 or Q8_0; F16 for BF16 where values are in keys, which are
    /// transposed as f32). A layer that shares another one's keys and values has no place of its own.
    pub fn new(config: &Config, dtype: PackedType) -> Self {
        let of_layer = |(index, layer): (usize, &crate::config::LayerSpec)| {
            let heads = config.cached_heads(layer);
            let has_none = layer.shares_kv_of.is_some() || !layer.mixer.has_attention();
            let further = config.mechanisms.further_heads(index);
            let num_heads = if has_none { 0 } else { heads.num_key_value_heads + further };
            let index_dim = config.mechanisms.index_dim(index, num_heads);
            let values_in_keys = config.values_in_keys(layer);
            let own = KvLayer::new(num_heads, heads.head_dim, heads.v_head_dim);
            KvLayer { values_in_keys, index_dim, ..own }
        };
        let layout = Self::of_layers(config.layers.iter().enumerate().map(of_layer), dtype);
        Self { recurrent: RecurrentLayout::new(config), ..layout }
    }

    /// The layout of layers of these heads and widths, one after the other.
    pub(super) fn of_layers(layers: impl Iterator<Item = KvLayer>, dtype: PackedType) -> Self {
        let layers: Vec<KvLayer> = layers.collect();
        let any_in_keys = layers.iter().any(|layer| layer.values_in_keys);
        let dtype = if dtype == PackedType::BF16 && any_in_keys { PackedType::F16 } else { dtype };
        let mut bytes = 0;
        let place = |layer: KvLayer| {
            let layer = KvLayer { start: bytes, ..layer };
            bytes = layer.index_start(dtype) + matrix_bytes(index_dtype(dtype), layer.index_dim);
            layer
        };
        let layers = layers.into_iter().map(place).collect();
        Self { dtype, recurrent: RecurrentLayout::default(), layers, bytes }
    }

    /// This layout with keys and values in another type.
    #[must_use]
    pub fn with_dtype(&self, dtype: PackedType) -> Self {
        Self { recurrent: self.recurrent, ..Self::of_layers(self.layers.iter().copied(), dtype) }
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.bytes
    }

    fn keys(&self, layer: usize, head: usize) -> Range<usize> {
        let layer = &self.layers[layer];
        let bytes = matrix_bytes(self.dtype, layer.head_dim);
        let start = layer.start + head * bytes;
        start..start + bytes
    }

    fn values(&self, layer: usize, head: usize) -> Range<usize> {
        let of_layer = &self.layers[layer];
        if of_layer.values_in_keys {
            return self.keys(layer, head);
        }
        let bytes = matrix_bytes(self.dtype, of_layer.padded_value_dim());
        let start = of_layer.values_start(self.dtype) + head * bytes;
        start..start + bytes
    }

    fn index_keys(&self, layer: usize) -> Range<usize> {
        let start = self.layers[layer].index_start(self.dtype);
        start..start + matrix_bytes(index_dtype(self.dtype), self.layers[layer].index_dim)
    }
}

impl KvLayer {
    /// Heads with keys and values of their own, at the start of a block.
    pub fn new(heads: usize, head_dim: usize, value_dim: usize) -> Self {
        Self { heads, head_dim, value_dim, values_in_keys: false, index_dim: 0, start: 0 }
    }

    /// `value_dim`, padded to whole panels.
    fn padded_value_dim(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Where its values start in a block.
    fn values_start(&self, dtype: PackedType) -> usize {
        self.start + self.heads * matrix_bytes(dtype, self.head_dim)
    }

    /// Where its indexer's keys start in a block.
    fn index_start(&self, dtype: PackedType) -> usize {
        let stored = if self.values_in_keys { 0 } else { self.heads };
        self.values_start(dtype) + stored * matrix_bytes(dtype, self.padded_value_dim())
    }
}

/// Bytes of a head's keys or values of some width.
fn matrix_bytes(dtype: PackedType, width: usize) -> usize {
    match dtype {
        PackedType::Q8_0 => BLOCK * (width + width.div_ceil(quant::BLOCK) * size_of::<f32>()),
        PackedType::BF16 => BLOCK * width.next_multiple_of(2) * PackedType::BF16.value_bytes(),
        float => BLOCK * width * float.value_bytes(),
    }
}

/// The type of an indexer's keys, which are multiplied with f32: that of keys and values, but f16 for bf16.
fn index_dtype(dtype: PackedType) -> PackedType {
    if dtype == PackedType::BF16 { PackedType::F16 } else { dtype }
}

/// Keys and values of 32 positions in every layer.
pub struct Block {
    pub(super) layout: KvLayout,
    pub(super) data: Buffer,
    /// The recurrent state at the block's end, where the model has one.
    pub(super) snapshot: Option<Slot>,
    /// One reference of the cache's count of blocks.
    pub(super) _allocated: Arc<()>,
}

impl Block {
    /// The recurrent state at the block's end, if it is kept.
    pub(super) fn snapshot(&self) -> Option<Arc<State>> {
        self.snapshot.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the recurrent state at the block's end is kept.
    pub fn has_snapshot(&self) -> bool {
        self.snapshot().is_some()
    }

    /// Drops the recurrent state at the block's end.
    pub(super) fn forget_snapshot(&self) {
        if let Some(slot) = &self.snapshot {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// The type of keys and values: F32, F16, BF16 or Q8_0.
    pub fn dtype(&self) -> PackedType {
        self.layout.dtype
    }

    /// Whether a layer's keys are rotated: in q8_0, where values are not in keys.
    pub(super) fn has_rotated_keys(&self, layer: usize) -> bool {
        self.layout.dtype == PackedType::Q8_0 && !self.layout.layers[layer].values_in_keys
    }

    /// All bytes of the block: keys, values and recurrent states.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.data.bytes()[..self.layout.block_bytes()]
    }

    /// All bytes of the block, to write.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.data.bytes_mut()[..self.layout.block_bytes()]
    }

    /// A copy of the first `positions`; the others are zero.
    ///
    /// # Errors
    /// Memory.
    pub(super) fn first(&self, positions: usize, kernels: Kernels) -> Result<Self> {
        let (layout, _allocated) = (self.layout.clone(), Arc::clone(&self._allocated));
        let data = Buffer::zeroed(layout.block_bytes(), "a block of the KV cache")?;
        let mut copy = Self { layout, data, snapshot: None, _allocated };
        copy.bytes_mut().copy_from_slice(self.bytes());
        for (index, layer) in self.layout.layers.iter().enumerate() {
            let (key, value) = (vec![0.0; layer.head_dim], vec![0.0; layer.value_dim]);
            for (head, position) in
                (0..layer.heads).flat_map(|head| (positions..BLOCK).map(move |p| (head, p)))
            {
                copy.write(index, head, position, &key, &value, kernels);
            }
        }
        Ok(copy)
    }

    /// A head's keys as they are stored: panels, and scales behind them in q8_0.
    pub fn keys(&self, layer: usize, head: usize) -> &[u8] {
        &self.data.bytes()[self.layout.keys(layer, head)]
    }

    /// A head's values as they are stored: panels, and scales behind them in q8_0; the keys where values are in keys.
    pub fn values(&self, layer: usize, head: usize) -> &[u8] {
        &self.data.bytes()[self.layout.values(layer, head)]
    }

    /// Key panels of a head for so many queries, rotated in q8_0; in `scratch` if they are q8_0, or f16 for many.
    /// // [2][head_dim][16], of bf16 [2][head_dim / 2][16][2]
    pub fn key_panels<'a>(
        &'a self,
        layer: usize,
        head: usize,
        queries: usize,
        scratch: &'a mut Vec<f32>,
        kernels: Kernels,
    ) -> (PackedType, &'a [u8]) {
        let width = self.layout.layers[layer].head_dim;
        if self.widens(queries) {
            return widened(self.keys(layer, head), scratch, kernels);
        }
        self.panels(self.layout.dtype, self.keys(layer, head), width, scratch, |bytes, scales, out| {
            kernels.dequantize_keys(bytes, scales, out);
        })
    }

    /// Panels of the indexer's keys, dequantized into `scratch` if they are q8_0.  // [2][index_head_dim][16]
    pub fn index_key_panels<'a>(
        &'a self,
        layer: usize,
        scratch: &'a mut Vec<f32>,
        kernels: Kernels,
    ) -> (PackedType, &'a [u8]) {
        let stored = &self.data.bytes()[self.layout.index_keys(layer)];
        let (dtype, width) = (index_dtype(self.layout.dtype), self.layout.layers[layer].index_dim);
        self.panels(dtype, stored, width, scratch, |bytes, scales, out| {
            kernels.dequantize_keys(bytes, scales, out);
        })
    }

    /// Value panels of a head, in the same way.  // [padded_value_dim / 16][32][16], of bf16 [padded_value_dim / 16][16][16][2]
    pub fn value_panels<'a>(
        &'a self,
        layer: usize,
        head: usize,
        queries: usize,
        scratch: &'a mut Vec<f32>,
        kernels: Kernels,
    ) -> (PackedType, &'a [u8]) {
        let of_layer = &self.layout.layers[layer];
        if of_layer.values_in_keys {
            return self.panels_in_keys(layer, head, scratch, kernels);
        }
        let width = of_layer.padded_value_dim();
        if self.widens(queries) {
            return widened(self.values(layer, head), scratch, kernels);
        }
        self.panels(self.layout.dtype, self.values(layer, head), width, scratch, |bytes, scales, out| {
            kernels.dequantize_values(bytes, scales, out);
        })
    }

    /// Value panels of a head whose values are the last columns of its keys, computed into `scratch`.
    fn panels_in_keys<'a>(
        &'a self,
        layer: usize,
        head: usize,
        scratch: &'a mut Vec<f32>,
        kernels: Kernels,
    ) -> (PackedType, &'a [u8]) {
        let KvLayer { head_dim, value_dim, .. } = self.layout.layers[layer];
        DEQUANTIZED.with_borrow_mut(|keys| {
            let (format, keys) = self.key_panels(layer, head, 1, keys, kernels);
            scratch.resize(BLOCK * self.layout.layers[layer].padded_value_dim(), 0.0);
            kernels.transpose_keys(format, keys, head_dim - value_dim, scratch);
        });
        (PackedType::F32, bytemuck::cast_slice(scratch))
    }

    /// Whether f16 is made f32 once for all queries, and not again for each tile of them: the same numbers either way.
    fn widens(&self, queries: usize) -> bool {
        self.layout.dtype == PackedType::F16 && queries >= WIDEN_FROM_QUERIES
    }

    fn panels<'a>(
        &self,
        dtype: PackedType,
        stored: &'a [u8],
        width: usize,
        scratch: &'a mut Vec<f32>,
        dequantize: impl Fn(&[u8], &[f32], &mut [f32]),
    ) -> (PackedType, &'a [u8]) {
        if dtype != PackedType::Q8_0 {
            return (dtype, stored);
        }
        let (bytes, scales) = stored.split_at(BLOCK * width);
        scratch.resize(BLOCK * width, 0.0);
        dequantize(bytes, bytemuck::cast_slice(scales), scratch);
        (PackedType::F32, bytemuck::cast_slice(scratch))
    }

    /// Stores the key and the value of a head at `position` of this block; no value where it is in the key.
    /// // key [head_dim], value [value_dim]
    pub fn write(
        &mut self,
        layer: usize,
        head: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
        kernels: Kernels,
    ) {
        let is_rotated = self.has_rotated_keys(layer);
        let (layout, data) = (&self.layout, &mut self.data);
        let keys = &mut data.bytes_mut()[layout.keys(layer, head)];
        let at = key_place(layout.dtype, key.len(), position);
        if is_rotated {
            ROTATED.with_borrow_mut(|rotated| {
                rotated.clear();
                rotated.extend_from_slice(key);
                rotate(rotated);
                store(keys, layout.dtype, rotated, at, position, kernels);
            });
        } else {
            store(keys, layout.dtype, key, at, position, kernels);
        }
        if layout.layers[layer].values_in_keys {
            return;
        }
        let values = &mut data.bytes_mut()[layout.values(layer, head)];
        store(values, layout.dtype, value, value_place(layout.dtype, position), position, kernels);
    }

    /// Reads the indexer's key at `position` of this block.  // key [index_head_dim]
    pub fn read_index_key(
        &self,
        layer: usize,
        position: usize,
        scratch: &mut Vec<f32>,
        key: &mut [f32],
        kernels: Kernels,
    ) {
        let (format, panels) = self.index_key_panels(layer, scratch, kernels);
        let (at, size) = (key_place(format, key.len(), position), format.value_bytes());
        for (d, x) in key.iter_mut().enumerate() {
            *x = format.values(&panels[at(d) * size..][..size]).next().unwrap_or_default();
        }
    }

    /// Stores the indexer's key at `position` of this block.  // key [index_head_dim]
    pub fn write_index_key(&mut self, layer: usize, position: usize, key: &[f32], kernels: Kernels) {
        let (layout, data) = (&self.layout, &mut self.data);
        let keys = &mut data.bytes_mut()[layout.index_keys(layer)];
        let dtype = index_dtype(layout.dtype);
        store(keys, dtype, key, key_place(dtype, key.len(), position), position, kernels);
    }
}

/// Where dimension d of the key at `position` is among the panels of its head's keys. A step of bf16 is a pair of dimensions.
fn key_place(dtype: PackedType, width: usize, position: usize) -> impl Fn(usize) -> usize {
    let pair = if dtype == PackedType::BF16 { 2 } else { 1 };
    let steps = width.div_ceil(pair);
    move |d| ((position / LANES * steps + d / pair) * LANES + position % LANES) * pair + d % pair
}

/// Where dimension d of the value at `position` is among the panels of its head's values. A step of bf16 is a pair of
/// positions.
fn value_place(dtype: PackedType, position: usize) -> impl Fn(usize) -> usize {
    let pair = if dtype == PackedType::BF16 { 2 } else { 1 };
    move |d| ((d / LANES * (BLOCK / pair) + position / pair) * LANES + d % LANES) * pair + position % pair
}

/// Panels of f16 as f32.
fn widened<'a>(stored: &[u8], scratch: &'a mut Vec<f32>, kernels: Kernels) -> (PackedType, &'a [u8]) {
    scratch.resize(stored.len() / size_of::<u16>(), 0.0);
    kernels.widen_f16(bytemuck::cast_slice(stored), scratch);
    (PackedType::F32, bytemuck::cast_slice(scratch))
}

/// Stores dimension d of a head at index `at(d)` of its matrix, and in q8_0 the scales of `position` behind it.
fn store(
    matrix: &mut [u8],
    dtype: PackedType,
    source: &[f32],
    at: impl Fn(usize) -> usize,
    position: usize,
    kernels: Kernels,
) {
    match dtype {
        PackedType::F16 | PackedType::BF16 => {
            let mut rounded = [0; 512];
            let panels: &mut [u16] = bytemuck::cast_slice_mut(matrix);
            for (first, part) in (0..).step_by(512).zip(source.chunks(512)) {
                match dtype {
                    PackedType::F16 => kernels.to_f16(part, &mut rounded[..part.len()]),
                    _ => kernels.to_bf16(part, &mut rounded[..part.len()]),
                }
                for (d, &x) in (first..).zip(&rounded[..part.len()]) {
                    panels[at(d)] = x;
                }
            }
        }
        PackedType::Q8_0 => ROUNDED.with_borrow_mut(|row| {
            row.resize(x_row_bytes(PackedType::Q8_0, PackedType::Q8_0.steps(source.len())), 0);
            kernels.quantize_q8(source, PackedType::Q8_0, row);
            let (rounded, scales) = q8_parts(row, source.len());
            let blocks = source.len().div_ceil(quant::BLOCK);
            let (panels, stored_scales) =
                matrix.split_at_mut(matrix.len() - BLOCK * blocks * size_of::<f32>());
            for (d, &x) in rounded.iter().enumerate() {
                panels[at(d)] = x;
            }
            let stored_scales: &mut [f32] = bytemuck::cast_slice_mut(stored_scales);
            for (block, scale) in scales.enumerate() {
                stored_scales[block * BLOCK + position] = scale;
            }
        }),
        _ => {
            let panels: &mut [f32] = bytemuck::cast_slice_mut(matrix);
            for (d, &x) in source.iter().enumerate() {
                panels[at(d)] = x;
            }
        }
    }
}

thread_local! {
    /// A head's key, rotated.
    static ROTATED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// A head's key or value as signed bytes.
    static ROUNDED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// A head's keys as f32, where they are stored as bytes.
    static DEQUANTIZED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Noise;
    use ropechat_kernels::kernel::Isa;

    fn empty(layout: KvLayout) -> Block {
        Block {
            data: Buffer::zeroed(layout.block_bytes(), "a test").unwrap(),
            layout,
            snapshot: None,
            _allocated: Arc::default(),
        }
    }

    /// Of two layers, the second one with three heads of these widths.
    fn block([head_dim, value_dim]: [usize; 2], dtype: PackedType) -> Block {
        let layers = [KvLayer::new(1, 5, 9), KvLayer::new(3, head_dim, value_dim)];
        empty(KvLayout::of_layers(layers.into_iter(), dtype))
    }

    #[test]
    fn values_in_keys_take_no_room() {
        let kernels = Kernels::of(Isa::Scalar).unwrap();
        for dtype in [PackedType::F32, PackedType::F16, PackedType::Q8_0] {
            let layout = |values_in_keys| {
                let layer = KvLayer { values_in_keys, index_dim: 5, ..KvLayer::new(1, 70, 64) };
                KvLayout::of_layers([layer, KvLayer::new(1, 3, 3)].into_iter(), dtype)
            };
            let (apart, inside) = (layout(false), layout(true));
            assert_eq!(apart.block_bytes() - inside.block_bytes(), matrix_bytes(dtype, 64));
            assert_eq!(inside, inside.with_dtype(PackedType::F32).with_dtype(dtype));
            let (mut block, mut noise) = (empty(inside), Noise(5));
            let keys: Vec<Vec<f32>> = (0..BLOCK).map(|_| noise.take(70)).collect();
            for (position, key) in keys.iter().enumerate() {
                block.write_index_key(0, position, &[1.0; 5], kernels);
                block.write(1, 0, position, &[2.0; 3], &[3.0; 3], kernels);
                block.write(0, 0, position, key, &[], kernels);
            }
            let (mut keys, mut values, mut other) = (Vec::new(), Vec::new(), Vec::new());
            let (_, keys) = block.key_panels(0, 0, WIDEN_FROM_QUERIES, &mut keys, kernels);
            let (format, values) = block.value_panels(0, 0, 1, &mut values, kernels);
            assert_eq!(format, PackedType::F32);
            let (keys, values): (&[f32], &[f32]) = (bytemuck::cast_slice(keys), bytemuck::cast_slice(values));
            for (at, value) in values.iter().enumerate() {
                let (d, position) = (at / (BLOCK * LANES) * LANES + at % LANES, at / LANES % BLOCK);
                assert_eq!(
                    *value,
                    keys[key_place(PackedType::F32, 70, position)(6 + d)],
                    "{dtype:?} {position} {d}"
                );
            }
            let mut index_key = [0.0; 5];
            block.read_index_key(0, 31, &mut other, &mut index_key, kernels);
            assert!(index_key.iter().all(|x| (x - 1.0).abs() < 1e-6), "{dtype:?}");
        }
    }

    #[test]
    fn pairs_of_bf16_are_multiplied_as_stored() {
        let kernels = Kernels::of(Isa::Scalar).unwrap();
        let rounded = |values: &[f32]| {
            let mut out = vec![0; values.len()];
            kernels.to_bf16(values, &mut out);
            out
        };
        for (head_dim, value_dim) in [(64, 64), (33, 7)] {
            let (mut noise, mut block) = (Noise(6), block([head_dim, value_dim], PackedType::BF16));
            let pairs: Vec<_> = (0..BLOCK).map(|_| (noise.take(head_dim), noise.take(value_dim))).collect();
            for (position, (key, value)) in pairs.iter().enumerate() {
                block.write(1, 2, position, key, value, kernels);
            }
            let copy = block.first(BLOCK - 3, kernels).unwrap();
            for block in [&block, &copy] {
                let (mut unused, mut also_unused) = (Vec::new(), Vec::new());
                let (format, keys) = block.key_panels(1, 2, WIDEN_FROM_QUERIES, &mut unused, kernels);
                let (_, values) = block.value_panels(1, 2, 1, &mut also_unused, kernels);
                assert_eq!(format, PackedType::BF16);
                let (keys, values): (&[u16], &[u16]) =
                    (bytemuck::cast_slice(keys), bytemuck::cast_slice(values));
                let steps = head_dim.div_ceil(2);
                for (position, (key, value)) in pairs.iter().enumerate() {
                    let is_kept = std::ptr::eq(block, &copy) <= (position < BLOCK - 3);
                    let (panel, lane, half) = (position / LANES, position % LANES, position % 2);
                    for (d, x) in rounded(key).into_iter().enumerate() {
                        let found = keys[((panel * steps + d / 2) * LANES + lane) * 2 + d % 2];
                        assert_eq!(found, if is_kept { x } else { 0 }, "key {position} {d}");
                    }
                    for (d, x) in rounded(value).into_iter().enumerate() {
                        let step = d / LANES * BLOCK / 2 + position / 2;
                        let found = values[(step * LANES + d % LANES) * 2 + half];
                        assert_eq!(found, if is_kept { x } else { 0 }, "value {position} {d}");
                    }
                }
            }
        }
    }

    #[test]
    fn many_queries_read_the_numbers_that_are_stored_as_f16() {
        let (mut noise, mut block) = (Noise(4), block([33, 7], PackedType::F16));
        for position in 0..BLOCK {
            let (key, value) = (noise.take(33), noise.take(7));
            block.write(1, 2, position, &key, &value, Kernels::of(Isa::Scalar).unwrap());
        }
        for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
            let (mut few, mut many) = (Vec::new(), Vec::new());
            for panels in [Block::key_panels, Block::value_panels] {
                let (format, stored) = panels(&block, 1, 2, 1, &mut few, kernels);
                assert_eq!(format, PackedType::F16);
                let (format, wide) = panels(&block, 1, 2, WIDEN_FROM_QUERIES, &mut many, kernels);
                assert_eq!(format, PackedType::F32);
                let (stored, wide) = (PackedType::F16.values(stored), PackedType::F32.values(wide));
                assert!(stored.eq(wide), "{kernels:?}");
            }
        }
    }

    #[test]
    fn bytes_come_back_within_half_a_step_of_their_scale() {
        let mut noise = Noise(3);
        for (head_dim, value_dim) in [(4, 4), (64, 64), (80, 40), (33, 7)] {
            let mut block = block([head_dim, value_dim], PackedType::Q8_0);
            let mut all = Vec::new();
            for position in 0..BLOCK {
                let (key, value) = (noise.take(head_dim), noise.take(value_dim));
                block.write(1, 2, position, &key, &value, Kernels::of(Isa::Scalar).unwrap());
                all.push((key, value));
            }
            for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                assert_eq!(block.key_panels(1, 2, 1, &mut keys, kernels).0, PackedType::F32);
                block.value_panels(1, 2, 1, &mut values, kernels);
                for (position, (key, value)) in all.iter().enumerate() {
                    let mut rotated = key.clone();
                    rotate(&mut rotated);
                    let half_step = 0.5001 / 127.0 * rotated.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                    for (d, &x) in rotated.iter().enumerate() {
                        let found = keys[(position / LANES * head_dim + d) * LANES + position % LANES];
                        assert!((found - x).abs() <= half_step, "{kernels:?} key {position} {d}");
                    }
                    for (d, &x) in value.iter().enumerate() {
                        let found = values[(d / LANES * BLOCK + position) * LANES + d % LANES];
                        assert!((found - x).abs() <= 0.5001 / 127.0, "{kernels:?} value {position} {d}");
                    }
                }
            }
        }
    }
}

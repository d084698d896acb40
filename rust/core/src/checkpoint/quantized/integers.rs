//! Matrices of integers: `value = (q - zero point) * scale`, with a scale and a zero point per row and group of columns.
//!
//! GPTQ, AWQ and compressed-tensors differ in the places of the integers and the zero points; the result is the same.
//! Integers are unsigned here; where a file has signed ones, they and their zero points are shifted together.

use std::sync::OnceLock;

use half::f16;

use super::rows::RowReader;
use super::scales::Scales;
use ropechat_kernels::quant::{BLOCK, StorageType};

/// Place of output `i` of eight in a word of AWQ, counted in nibbles.
const AWQ_NIBBLE: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Where the integers are.
#[derive(Debug)]
pub(super) enum Values<'a> {
    /// A stream of bits down each column of words.  // [columns * bits / 32, rows]
    Down { words: &'a [u8], rows: usize },
    /// A stream of bits along each row of words.  // [rows, per_row]
    Along { words: &'a [u8], per_row: usize },
    /// Words of eight rows.  // [columns, rows / 8]
    Awq { words: &'a [u8], rows: usize },
    /// Signed bytes, read as + 128.  // [rows, columns]
    Bytes(&'a [u8]),
}

/// Where the zero points are, as integers of the same bits.
#[derive(Debug)]
pub(super) enum Zeros<'a> {
    /// One for all.
    Same(i32),
    /// A stream of bits along each row of words, `less` less than the zero point.  // [groups, per_group]
    Along { words: &'a [u8], per_group: usize, less: u32 },
    /// A stream of bits down each column of words.  // [rows * bits / 32, groups]
    Down { words: &'a [u8], groups: usize },
    /// Words of eight rows.  // [groups, rows / 8]
    Awq { words: &'a [u8], rows: usize },
    /// Signed bytes, read as + 128; a stride of 0 means that rows or groups share one.
    Bytes { bytes: &'a [u8], row_stride: usize, group_stride: usize },
}

/// Which group a column belongs to.
#[derive(Debug)]
pub(super) enum Groups {
    /// So many columns after each other.
    Of(usize),
    /// `g_idx`: one per column.
    Listed(Vec<usize>),
}

#[derive(Debug)]
pub(super) struct Integers<'a> {
    values: Values<'a>,
    bits: usize,
    rows: usize,
    columns: usize,
    groups: Groups,
    num_groups: usize,
    scales: Scales<'a>,
    zeros: Zeros<'a>,
    /// Asked for when the matrix is loaded: scales and zero points must be read for it.
    kept: OnceLock<StorageType>,
}

fn word(words: &[u8], index: usize) -> u32 {
    let at = 4 * index;
    u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]])
}

/// Field `index` of a stream of fields of `bits` bits, the lowest bits first.
fn field(words: impl Fn(usize) -> u32, bits: usize, index: usize) -> u32 {
    let (at, shift) = (index * bits / 32, index * bits % 32);
    let low = words(at) >> shift;
    let all = if shift + bits > 32 { low | words(at + 1) << (32 - shift) } else { low };
    all & mask(bits)
}

fn mask(bits: usize) -> u32 {
    (1 << bits) - 1
}

/// A whole stream of fields.
fn fields(words: impl Fn(usize) -> u32, bits: usize, out: &mut [u8]) {
    if 32 % bits == 0 {
        for (at, out) in out.chunks_mut(32 / bits).enumerate() {
            let word = words(at);
            for (i, out) in out.iter_mut().enumerate() {
                *out = (word >> (i * bits) & mask(bits)) as u8;
            }
        }
    } else {
        out.iter_mut().enumerate().for_each(|(index, out)| *out = field(&words, bits, index) as u8);
    }
}

impl Values<'_> {
    /// The integers of a row.  // out [columns]
    fn read(&self, bits: usize, row: usize, out: &mut [u8]) {
        match *self {
            Values::Down { words, rows } => fields(|at| word(words, at * rows + row), bits, out),
            Values::Along { words, per_row } => fields(|at| word(words, row * per_row + at), bits, out),
            Values::Awq { words, rows } => {
                let (at, shift) = (row / 8, 4 * AWQ_NIBBLE[row % 8]);
                for (column, out) in out.iter_mut().enumerate() {
                    *out = (word(words, column * (rows / 8) + at) >> shift & 15) as u8;
                }
            }
            Values::Bytes(bytes) => {
                let row = &bytes[row * out.len()..][..out.len()];
                out.iter_mut().zip(row).for_each(|(out, &q)| *out = q ^ 0x80);
            }
        }
    }
}

impl Zeros<'_> {
    fn at(&self, bits: usize, row: usize, group: usize) -> i32 {
        let zero = match *self {
            Zeros::Same(zero) => return zero,
            Zeros::Along { words, per_group, less } => {
                let stored = field(|at| word(words, group * per_group + at), bits, row);
                stored.wrapping_add(less) & mask(bits)
            }
            Zeros::Down { words, groups } => field(|at| word(words, at * groups + group), bits, row),
            Zeros::Awq { words, rows } => {
                word(words, group * (rows / 8) + row / 8) >> (4 * AWQ_NIBBLE[row % 8]) & 15
            }
            Zeros::Bytes { bytes, row_stride, group_stride } => {
                u32::from(bytes[row * row_stride + group * group_stride] ^ 0x80)
            }
        };
        zero as i32
    }
}

impl Groups {
    /// Groups in their order if `listed` says no more than that.
    pub fn new(listed: Vec<usize>, size: usize) -> Self {
        match listed.iter().enumerate().all(|(column, &group)| group == column / size) {
            true => Groups::Of(size),
            false => Groups::Listed(listed),
        }
    }
}

/// The sizes of a matrix of integers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub bits: usize,
    pub rows: usize,
    pub columns: usize,
    pub groups: usize,
}

impl<'a> Integers<'a> {
    /// The parts' shapes were checked against `sizes`, and listed groups against `sizes.groups`.
    pub fn new(
        sizes: Sizes,
        values: Values<'a>,
        groups: Groups,
        scales: Scales<'a>,
        zeros: Zeros<'a>,
    ) -> Self {
        let Sizes { bits, rows, columns, groups: num_groups } = sizes;
        let kept = OnceLock::new();
        Self { values, bits, rows, columns, groups, num_groups, scales, zeros, kept }
    }

    /// Blocks of 32 where they can have these integers and scales, else the nearest floats.
    fn best_type(&self) -> StorageType {
        let floats = || self.scales.half_type(mask(self.bits) as f32);
        let Groups::Of(size) = self.groups else { return floats() };
        let whole_blocks =
            self.columns.is_multiple_of(BLOCK) && (size >= self.columns || size.is_multiple_of(BLOCK));
        if !whole_blocks || !self.scales.are_f16() {
            return floats();
        }
        let (least, most) = self.zero_range();
        match (-most, mask(self.bits) as i32 - least) {
            (-8.., ..=7) => StorageType::Q4_0,
            _ if self.bits <= 4 => StorageType::Q4_1,
            (-128.., ..=127) => StorageType::Q8_0,
            _ => floats(),
        }
    }

    /// The least and the largest zero point.
    fn zero_range(&self) -> (i32, i32) {
        if let Zeros::Same(zero) = self.zeros {
            return (zero, zero);
        }
        let all = (0..self.num_groups).flat_map(|group| (0..self.rows).map(move |row| (row, group)));
        all.map(|(row, group)| self.zeros.at(self.bits, row, group))
            .fold((i32::MAX, i32::MIN), |(least, most), zero| (least.min(zero), most.max(zero)))
    }

    fn scale_and_zero(&self, row: usize, group: usize) -> (f32, i32) {
        (self.scales.at(row, group), self.zeros.at(self.bits, row, group))
    }
}

impl RowReader for Integers<'_> {
    fn kept(&self) -> StorageType {
        *self.kept.get_or_init(|| self.best_type())
    }

    fn values(&self, row: usize, out: &mut [f32]) {
        let mut integers = vec![0; self.columns];
        self.values.read(self.bits, row, &mut integers);
        let factor = self.scales.factor;
        let value = |q: u8, (scale, zero): (f32, i32)| (i32::from(q) - zero) as f32 * scale * factor;
        match &self.groups {
            Groups::Of(size) => {
                let groups = integers.chunks(*size).zip(out.chunks_mut(*size)).enumerate();
                for (group, (integers, out)) in groups {
                    let of_group = self.scale_and_zero(row, group);
                    out.iter_mut().zip(integers).for_each(|(out, &q)| *out = value(q, of_group));
                }
            }
            Groups::Listed(listed) => {
                let all: Vec<_> = (0..self.num_groups).map(|group| self.scale_and_zero(row, group)).collect();
                for ((out, &q), &group) in out.iter_mut().zip(&integers).zip(listed) {
                    *out = value(q, all[group]);
                }
            }
        }
    }

    fn has_blocks(&self) -> bool {
        true
    }

    fn blocks(&self, row: usize, out: &mut Vec<u8>) {
        let (Groups::Of(size), kept) = (&self.groups, self.kept()) else { return };
        let factor = self.scales.factor;
        let mut integers = vec![0; self.columns];
        self.values.read(self.bits, row, &mut integers);
        for (index, block) in integers.as_chunks::<BLOCK>().0.iter().enumerate() {
            let (scale, zero) = self.scale_and_zero(row, index * BLOCK / size);
            let scale = scale * factor;
            out.extend(f16::from_f32(scale).to_le_bytes());
            let offset = match kept {
                StorageType::Q4_0 => 8 - zero,
                StorageType::Q4_1 => {
                    out.extend(f16::from_f32(-scale * zero as f32).to_le_bytes());
                    0
                }
                _ => -zero,
            };
            let integer = |q: u8| (i32::from(q) + offset) as u8;
            if kept == StorageType::Q8_0 {
                out.extend(block.iter().map(|&q| integer(q)));
            } else {
                let (low, high) = block.split_at(BLOCK / 2);
                out.extend(low.iter().zip(high).map(|(&low, &high)| integer(low) | integer(high) << 4));
            }
        }
    }
}

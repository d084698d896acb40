//! The scales of a quantized matrix: which float belongs to a row and a group of its columns.

use half::{bf16, f16};

use super::parts::Part;
use ropechat_kernels::quant::{StorageType, float8};

/// The largest f16.
const LARGEST_F16: f32 = 65504.0;
/// Matrices of smaller values would lose bits in f16, whose smallest step is 2^-24.
const LEAST_IN_F16: f32 = 1.0 / 1024.0;

/// Scales with their place: `index = (row's block) * row_stride + group * group_stride`; a stride of 0 means that rows or
/// groups share one.
#[derive(Debug)]
pub(super) struct Scales<'a> {
    values: Part<'a>,
    /// Rows that share a scale, and the rows of a matrix, each of which begins with a new block.
    row_block: usize,
    matrix_rows: usize,
    row_stride: usize,
    group_stride: usize,
    /// Multiplied with every value that was multiplied with its scale: another rounding.
    pub factor: f32,
}

impl<'a> Scales<'a> {
    /// One for the whole tensor.
    pub fn of_tensor(values: Part<'a>) -> Self {
        Self { values, row_block: 1, matrix_rows: usize::MAX, row_stride: 0, group_stride: 0, factor: 1.0 }
    }

    /// [rows, groups]
    pub fn by_row(values: Part<'a>, groups: usize) -> Self {
        let group_stride = if groups == 1 { 0 } else { 1 };
        Self { row_stride: groups, group_stride, ..Self::of_tensor(values) }
    }

    /// [groups, rows]
    pub fn by_group(values: Part<'a>, rows: usize) -> Self {
        Self { row_stride: 1, group_stride: rows, ..Self::of_tensor(values) }
    }

    /// [matrices, rows / row_block, groups], blocks of rows at a matrix's end may be short.
    pub fn by_block(values: Part<'a>, row_block: usize, matrix_rows: usize, groups: usize) -> Self {
        Self { row_block, matrix_rows, row_stride: groups, group_stride: 1, ..Self::of_tensor(values) }
    }

    /// These scales times `factor`.
    pub fn times(self, factor: f32) -> Self {
        Self { factor, ..self }
    }

    /// The stored scale of a row's group, without the factor.
    pub fn at(&self, row: usize, group: usize) -> f32 {
        let row = match self.row_block {
            1 => row,
            block => {
                let blocks = self.matrix_rows.div_ceil(block);
                row / self.matrix_rows * blocks + row % self.matrix_rows / block
            }
        };
        self.get(row * self.row_stride + group * self.group_stride)
    }

    fn get(&self, index: usize) -> f32 {
        let bytes = self.values.bytes;
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match self.values.dtype {
            "F32" => {
                let at = 4 * index;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
            "F16" => f16::from_bits(two(2 * index)).to_f32(),
            "BF16" => bf16::from_bits(two(2 * index)).to_f32(),
            _ => float8::e8m0(bytes[index]),
        }
    }

    fn all(&self) -> impl Iterator<Item = f32> {
        (0..self.values.shape.iter().product()).map(|index| self.get(index) * self.factor)
    }

    /// Whether blocks with an f16 as their scale can have these.
    pub fn are_f16(&self) -> bool {
        (self.values.dtype == "F16" && self.factor == 1.0)
            || self.all().all(|scale| scale.is_nan() || f16::from_f32(scale).to_f32() == scale)
    }

    /// Whether all are powers of two: products of them have the bits of the other factor.
    pub fn are_powers_of_two(&self) -> bool {
        self.all().all(|scale| scale.is_normal() && scale.to_bits() & 0x007f_ffff == 0)
    }

    /// The nearest type of 16 bits for products with numbers up to `largest`: f16, which has three bits more than bf16, where
    /// it has the range.
    pub fn half_type(&self, largest: f32) -> StorageType {
        let top = self.all().fold(0.0_f32, |top, scale| top.max(scale.abs())) * largest;
        if (LEAST_IN_F16..=LARGEST_F16).contains(&top) { StorageType::F16 } else { StorageType::BF16 }
    }
}

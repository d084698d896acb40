//! Ternary matrices (BitNet b1.58): each value is -1, 0 or 1 times one scale of the matrix.
//!
//! A byte of a packed matrix has a value of four rows, the lowest bits first: of rows r, r + rows / 4, r + rows / 2 and
//! r + 3 rows / 4 in one column, each as value + 1. Source: transformers 5.23, `integrations/bitnet.py`.

use std::sync::OnceLock;

use super::parts::Part;
use super::rows::RowReader;
use super::scales::Scales;
use ropechat_kernels::compute::activations::RowRounding;
use ropechat_kernels::quant::StorageType;

/// Rows in a byte.
pub(super) const ROWS_IN_BYTE: usize = 4;
/// The least mean magnitude that a matrix is divided by.
const LEAST_MEAN: f64 = 1e-5;

/// A packed matrix.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    /// [rows / 4, columns]
    pub bytes: &'a [u8],
    pub rows: usize,
    pub scale: Scales<'a>,
    /// Whether values are divided by the scale.
    pub is_divisor: bool,
}

impl RowReader for Packed<'_> {
    fn kept(&self) -> StorageType {
        StorageType::TQ2_0
    }

    fn rounding(&self) -> RowRounding {
        RowRounding::BytesByRow
    }

    fn values(&self, row: usize, out: &mut [f32]) {
        let (block, shift) = (row % (self.rows / ROWS_IN_BYTE), row / (self.rows / ROWS_IN_BYTE) * 2);
        let scale = self.scale.at(0, 0);
        let values = [-1.0, 0.0, 1.0, 2.0].map(|x: f32| if self.is_divisor { x / scale } else { x * scale });
        let bytes = &self.bytes[block * out.len()..][..out.len()];
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = values[usize::from(byte >> shift & 3)]);
    }
}

/// A matrix of floats that the model rounds: to the nearest multiple of the mean magnitude, and not beyond it.
#[derive(Debug)]
pub(super) struct Rounded<'a> {
    values: Part<'a>,
    kind: StorageType,
    /// What values are multiplied with before they are rounded: 1 / the mean magnitude, after a first pass over the matrix.
    factor: OnceLock<f32>,
}

impl<'a> Rounded<'a> {
    pub fn new(values: Part<'a>, kind: StorageType) -> Self {
        Self { values, kind, factor: OnceLock::new() }
    }

    fn factor(&self) -> f32 {
        *self.factor.get_or_init(|| {
            const AT_A_TIME: usize = 4096; // values
            let mut values = [0.0; AT_A_TIME];
            let (mut sum, mut count) = (0.0, 0);
            for bytes in self.values.bytes.chunks(self.kind.row_bytes(AT_A_TIME)) {
                let values = &mut values[..bytes.len() / self.kind.row_bytes(1)];
                self.kind.dequantize(bytes, values);
                sum += values.iter().map(|value| f64::from(value.abs())).sum::<f64>();
                count += values.len();
            }
            // NaN stays.
            let mean = sum / count as f64;
            1.0 / (if mean < LEAST_MEAN { LEAST_MEAN } else { mean }) as f32
        })
    }
}

impl RowReader for Rounded<'_> {
    fn kept(&self) -> StorageType {
        StorageType::TQ2_0
    }

    fn rounding(&self) -> RowRounding {
        RowRounding::BytesByRow
    }

    fn values(&self, row: usize, out: &mut [f32]) {
        let (factor, bytes) = (self.factor(), self.kind.row_bytes(out.len()));
        self.kind.dequantize(&self.values.bytes[row * bytes..][..bytes], out);
        let step = 1.0 / factor; // NaN if a value is
        for x in out {
            let steps = *x * factor;
            // The nearest integer; a half is nearest to the even one.
            let integer = f32::from(i8::from(steps > 0.5) - i8::from(steps < -0.5));
            *x = integer * step;
        }
    }
}

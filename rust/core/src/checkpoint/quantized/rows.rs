//! What every layout gives: rows of a matrix.

use ropechat_kernels::quant::StorageType;

/// Rows of a matrix, out of its parts.
pub(super) trait RowReader: std::fmt::Debug + Send + Sync {
    /// The type that loses nothing that matters: blocks with the same integers, or the nearest floats.
    fn kept(&self) -> StorageType;

    /// The values of a row.  // out [columns]
    fn values(&self, row: usize, out: &mut [f32]);

    /// The blocks of a row, if [`RowReader::kept`] is a type of blocks.  // appended: row_bytes(columns)
    fn blocks(&self, _row: usize, _out: &mut Vec<u8>) {}
}

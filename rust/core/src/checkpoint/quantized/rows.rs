//! What every layout gives: rows of a matrix.

use ropechat_kernels::compute::activations::RowRounding;
use ropechat_kernels::quant::StorageType;

/// Rows of a matrix, out of its parts.
pub(super) trait RowReader: std::fmt::Debug + Send + Sync {
    /// The type that loses nothing that matters: blocks with the same integers, or the nearest floats.
    fn kept(&self) -> StorageType;

    /// How the model rounds the inputs of the matrix.
    fn rounding(&self) -> RowRounding {
        RowRounding::AsWeights
    }

    /// The values of a row.  // out [columns]
    fn values(&self, row: usize, out: &mut [f32]);

    /// Whether rows are handed out as blocks where [`RowReader::kept`] is a type of blocks; else as values that its packed type
    /// has room for.
    fn has_blocks(&self) -> bool {
        false
    }

    /// The blocks of a row.  // appended: row_bytes(columns)
    fn blocks(&self, _row: usize, _out: &mut Vec<u8>) {}
}

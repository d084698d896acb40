//! Rows of stored tensors, in the order in which a matrix takes them.

use std::borrow::Cow;
use std::ops::Range;

use crate::checkpoint::TensorView;
use crate::checkpoint::quantized::{Matrix, Quantized};
use crate::config::Stored;
use crate::parts::{Rows, TensorRows};
use ropechat_kernels::compute::panels::{Source, SourceRows};
use ropechat_kernels::quant::{PackedType, StorageType};

/// Rows of a matrix to be packed.
pub(super) enum Gathered<'m, 'a> {
    /// Of a plain tensor.
    Stored(StoredRows<'a>),
    /// Of a plain tensor whose rows are not used in their order.
    Chosen { view: TensorView<'a>, order: Vec<usize> },
    /// Columns of rows that are transposed, as f32.
    Transposed { matrix: &'m Matrix<'a>, bytes: Vec<u8> },
    /// Of a quantized one, made when they are packed.
    Computed { quantized: &'m Quantized<'a>, tensor_type: StorageType, rows: Rows, make: Box<MakeRow<'m>> },
}

/// Appends the bytes of a row.
pub(super) type MakeRow<'m> = dyn Fn(usize, &mut Vec<u8>) + Sync + 'm;

/// Rows of a plain tensor.
pub(super) struct StoredRows<'a> {
    pub(super) view: TensorView<'a>,
    /// The type of `bytes`: the tensor's, unless blocks had to be split.
    pub(super) tensor_type: StorageType,
    pub(super) bytes: Cow<'a, [u8]>,
}

impl<'m, 'a> Gathered<'m, 'a> {
    pub(super) fn computed(quantized: &'m Quantized<'a>, rows: Rows, dtype: PackedType) -> Self {
        let (order, tensor_type): (Vec<usize>, _) = (rows.iter().collect(), quantized.row_type(dtype));
        let make = move |index: usize, out: &mut Vec<u8>| quantized.read_row(order[index], tensor_type, out);
        Gathered::Computed { quantized, tensor_type, rows, make: Box::new(make) }
    }

    pub(super) fn source(&self, out_features: usize) -> Source<'_> {
        match self {
            Gathered::Stored(StoredRows { tensor_type, bytes, .. }) => {
                Source { tensor_type: *tensor_type, out_features, rows: SourceRows::Stored(bytes) }
            }
            Gathered::Chosen { view, order } => Source {
                tensor_type: view.tensor_type,
                out_features,
                rows: SourceRows::Chosen(view.bytes, order),
            },
            Gathered::Transposed { bytes, .. } => {
                Source { tensor_type: StorageType::F32, out_features, rows: SourceRows::Stored(bytes) }
            }
            Gathered::Computed { tensor_type, make, .. } => {
                Source { tensor_type: *tensor_type, out_features, rows: SourceRows::Computed(&**make) }
            }
        }
    }

    /// The tensor and the bytes that only these rows of the source need.
    pub(super) fn piece(&self, rows: Range<usize>, width: usize) -> Option<(&str, &[u8])> {
        match self {
            Gathered::Stored(StoredRows { view, tensor_type, bytes: Cow::Borrowed(bytes) }) => {
                let row = tensor_type.row_bytes(width);
                Some((view.name, bytes.get(rows.start * row..rows.end * row)?))
            }
            Gathered::Stored(_) | Gathered::Chosen { .. } | Gathered::Transposed { .. } => None,
            Gathered::Computed { quantized, rows: of_tensor, .. } => {
                let first = of_tensor.as_range()?.start;
                quantized.piece(first + rows.start..first + rows.end)
            }
        }
    }

    /// Calls `each` with the name and the bytes of every tensor.
    pub(super) fn each_tensor(&self, mut each: impl FnMut(&str, &[u8])) {
        match self {
            Gathered::Stored(StoredRows { view, .. })
            | Gathered::Chosen { view, .. }
            | Gathered::Transposed { matrix: Matrix::Plain(view), .. } => each(view.name, view.bytes),
            Gathered::Computed { quantized: of, .. } => {
                of.parts().for_each(|(name, bytes)| each(name, bytes))
            }
            Gathered::Transposed { matrix: Matrix::Quantized(of), .. } => {
                of.parts().for_each(|(name, bytes)| each(name, bytes));
            }
        }
    }
}

/// Rows of `width` values of a tensor, in the order asked for; copied only when they are not one piece of the file.
pub(super) fn gathered(view: TensorView<'_>, stored: Stored, rows: Rows, width: usize) -> StoredRows<'_> {
    let kind = view.tensor_type;
    match stored {
        Stored::OutIn => {
            let row = kind.row_bytes(width);
            let bytes = match rows.as_range() {
                Some(range) => Cow::Borrowed(&view.bytes[range.start * row..range.end * row]),
                None => {
                    let mut bytes = Vec::with_capacity(rows.count() * row);
                    rows.iter().for_each(|index| bytes.extend_from_slice(&view.bytes[index * row..][..row]));
                    Cow::Owned(bytes)
                }
            };
            StoredRows { view, tensor_type: kind, bytes }
        }
        Stored::InOut if kind.is_float() => {
            let bytes = Cow::Owned(transposed(&view, view.bytes, kind.row_bytes(1), rows, width));
            StoredRows { view, tensor_type: kind, bytes }
        }
        // A block has values of several rows.
        Stored::InOut => {
            let mut values = vec![0.0; view.shape.iter().product()];
            kind.dequantize(view.bytes, &mut values);
            let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
            let bytes = Cow::Owned(transposed(&view, &bytes, 4, rows, width));
            StoredRows { view, tensor_type: StorageType::F32, bytes }
        }
    }
}

/// The transpose of some rows of a matrix, as f32.  // [source.rows, source.transposed]
pub(super) fn transpose(matrix: &Matrix<'_>, source: &TensorRows) -> Vec<u8> {
    let (columns, inputs) =
        (source.matrix_shape().columns, source.transposed.as_deref().copied().unwrap_or(source.rows));
    let (mut row, mut bytes) = (vec![0.0; columns], Vec::new());
    let mut values = vec![0f32; source.rows.count() * inputs.count()];
    for (input, index) in inputs.iter().enumerate() {
        match matrix {
            Matrix::Plain(view) => {
                let width = view.tensor_type.row_bytes(columns);
                view.tensor_type.dequantize(&view.bytes[index * width..][..width], &mut row);
            }
            Matrix::Quantized(quantized) => {
                quantized.read_row(index, StorageType::F32, &mut bytes);
                StorageType::F32.dequantize(&bytes, &mut row);
            }
        }
        for (out, column) in source.rows.iter().enumerate() {
            values[out * inputs.count() + input] = row[column];
        }
    }
    bytemuck::cast_slice(&values).to_vec()
}

/// Rows of matrices [in, out], whose values have `size` bytes.
pub(super) fn transposed(
    view: &TensorView<'_>,
    from: &[u8],
    size: usize,
    rows: Rows,
    width: usize,
) -> Vec<u8> {
    let out = view.shape.last().copied().unwrap_or(1);
    let mut bytes = Vec::with_capacity(rows.count() * width * size);
    for index in rows.iter() {
        let (matrix, row) = (index / out, index % out);
        for column in 0..width {
            let at = ((matrix * width + column) * out + row) * size;
            bytes.extend_from_slice(&from[at..at + size]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    /// Two matrices [in 3, out 32] of one block per row: what is taken out of them is their columns.
    #[test]
    fn blocks_are_taken_apart_to_be_transposed() {
        let block = |scale: f32| -> Vec<u8> {
            let scale = half::f16::from_f32(scale).to_le_bytes();
            scale.into_iter().chain((0..32).map(|q| q as u8)).collect()
        };
        let bytes: Vec<u8> = (1..=6).flat_map(|row| block(row as f32)).collect();
        let view = TensorView {
            name: "x",
            tensor_type: StorageType::Q8_0,
            shape: &[2, 3, 32],
            bytes: &bytes,
            path: Path::new("x"),
        };
        let rows = Rows::range(32 + 5, 2);
        let part = gathered(view, Stored::InOut, rows, 3);
        assert_eq!(part.tensor_type, StorageType::F32);
        let mut values = vec![0.0; 6];
        part.tensor_type.dequantize(&part.bytes, &mut values);
        assert_eq!(values, [4.0 * 5.0, 5.0 * 5.0, 6.0 * 5.0, 4.0 * 6.0, 5.0 * 6.0, 6.0 * 6.0]);
    }
}

//! Which rows of a stored tensor a matrix of the model takes, and in which order.

use crate::checkpoint::quantized::MatrixShape;
use crate::config::Stored;

/// A tensor and some of its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorRows {
    /// Hub name.
    pub name: String,
    /// Shape in the file.
    pub shape: Vec<usize>,
    /// Whether it is stored transposed.
    pub stored: Stored,
    /// The rows taken, of all outer dimensions flattened ([out]s of an [in, out] matrix).
    pub rows: Rows,
    /// The matrix is the transpose of these rows, and `rows` are columns of the tensor.
    pub transposed: Option<Box<Rows>>,
}

impl TensorRows {
    /// All rows of a matrix.
    pub fn whole(name: String, stored: Stored, rows: usize, columns: usize) -> Self {
        let shape = match stored {
            Stored::OutIn => vec![rows, columns],
            Stored::InOut => vec![columns, rows],
        };
        Self { name, shape, stored, rows: Rows::all(rows), transposed: None }
    }

    /// The shape that a checkpoint is asked for; a vector is one row.
    pub fn matrix_shape(&self) -> MatrixShape<'_> {
        let in_out = self.stored == Stored::InOut;
        let columns = self.shape.iter().rev().nth(usize::from(in_out)).copied().unwrap_or(1);
        MatrixShape { stored: &self.shape, columns, in_out }
    }

    /// A vector of zeros, which no file stores: the bias of a part without one, next to parts that have one.
    pub fn zeros(n: usize) -> Self {
        Self { shape: Vec::new(), ..Self::vector(String::new(), Rows::all(n)) }
    }

    /// Whether it is [`TensorRows::zeros`].
    pub fn is_zeros(&self) -> bool {
        self.name.is_empty()
    }

    /// Elements of a vector of the length that `rows` reaches into.
    pub fn vector(name: String, rows: Rows) -> Self {
        Self { name, shape: vec![rows.wrap], stored: Stored::OutIn, rows, transposed: None }
    }
}

/// `len` rows of each of `blocks` blocks: row `offset + block * stride + (first + i) % wrap`, or another order in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    offset: usize,
    blocks: usize,
    stride: usize,
    first: usize,
    wrap: usize,
    len: usize,
    order: Order,
}

/// The order of the rows in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Ascending.
    Ascending,
    /// Even rows, then odd rows: pairs become halves.
    EvensThenOdds,
}

impl Rows {
    /// 0..n.
    pub fn all(n: usize) -> Self {
        Self { offset: 0, blocks: 1, stride: n, first: 0, wrap: n, len: n, order: Order::Ascending }
    }

    /// first..first + len.
    pub fn range(first: usize, len: usize) -> Self {
        Self { offset: first, blocks: 1, stride: len, first: 0, wrap: len, len, order: Order::Ascending }
    }

    /// Of each of `blocks` blocks of `stride` rows: `len` rows from `first` on, wrapping around at the block's end.
    pub fn each(blocks: usize, stride: usize, first: usize, len: usize) -> Self {
        Self { offset: 0, blocks, stride, first, wrap: stride, len, order: Order::Ascending }
    }

    /// These rows, wrapping around after `wrap` rows of a block instead of at its end.
    pub fn wrapped_at(self, wrap: usize) -> Self {
        Self { wrap, ..self }
    }

    /// Of each of `blocks` blocks of `stride` rows: the even rows, then the odd rows.
    pub fn evens_then_odds(blocks: usize, stride: usize) -> Self {
        Self { order: Order::EvensThenOdds, ..Self::each(blocks, stride, 0, stride) }
    }

    /// Of each of `blocks` blocks of `stride` rows: the second half, then the first.
    pub fn halves_swapped(blocks: usize, stride: usize) -> Self {
        Self::each(blocks, stride, stride / 2, stride)
    }

    /// 0..n, `times` times.
    pub fn repeated(times: usize, n: usize) -> Self {
        Self { offset: 0, blocks: times, stride: 0, first: 0, wrap: n, len: n, order: Order::Ascending }
    }

    /// Each of 0..n, `times` times.
    pub fn spread(n: usize, times: usize) -> Self {
        Self { offset: 0, blocks: n, stride: 1, first: 0, wrap: 1, len: times, order: Order::Ascending }
    }

    /// The same rows, shifted by `offset`.
    pub fn from(self, offset: usize) -> Self {
        Self { offset: self.offset + offset, ..self }
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        self.blocks * self.len
    }

    /// The first row.
    pub fn first(&self) -> usize {
        self.offset + self.within(0)
    }

    /// All rows, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.blocks).flat_map(move |block| {
            (0..self.len).map(move |i| self.offset + block * self.stride + self.within(i))
        })
    }

    /// Place of row i in its block.
    fn within(&self, i: usize) -> usize {
        match self.order {
            Order::Ascending => (self.first + i) % self.wrap,
            Order::EvensThenOdds => 2 * i % self.len + 2 * i / self.len,
        }
    }

    /// The rows as a range, when they are contiguous and ascending.
    pub fn as_range(&self) -> Option<std::ops::Range<usize>> {
        let start = self.offset + self.first;
        let ascending = self.order == Order::Ascending;
        (ascending && self.blocks == 1 && self.first + self.len <= self.wrap).then(|| start..start + self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::Rows;

    #[test]
    fn rows_in_their_order() {
        let all = |rows: Rows| {
            assert_eq!(rows.iter().count(), rows.count());
            assert!(rows.as_range().is_none_or(|range| range.eq(rows.iter())));
            rows.iter().collect::<Vec<_>>()
        };
        assert_eq!(all(Rows::all(3)), [0, 1, 2]);
        assert_eq!(all(Rows::range(4, 2)), [4, 5]);
        assert_eq!(all(Rows::each(2, 5, 1, 2)), [1, 2, 6, 7]);
        assert_eq!(all(Rows::each(2, 5, 3, 5)), [3, 4, 0, 1, 2, 8, 9, 5, 6, 7]);
        assert_eq!(all(Rows::each(3, 2, 1, 1).from(10)), [11, 13, 15]);
        assert_eq!(all(Rows::repeated(2, 3)), [0, 1, 2, 0, 1, 2]);
        assert_eq!(all(Rows::spread(3, 2)), [0, 0, 1, 1, 2, 2]);
        assert_eq!(all(Rows::evens_then_odds(2, 6).from(1)), [1, 3, 5, 2, 4, 6, 7, 9, 11, 8, 10, 12]);
    }
}

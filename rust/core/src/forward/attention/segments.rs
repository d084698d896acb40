//! The rows of a pass by the blocks of the cache that they go into.

use crate::forward::state::Run;
use crate::kv_cache::{BLOCK, Block};

/// Rows of one run that fall into one block.
pub(crate) struct Segment<'a> {
    /// Their queries, keys and values.  // [rows, stride]
    pub qkv: &'a mut [f32],
    /// The first row's index among the rows of all runs.
    pub row: usize,
    /// Position of the first row.
    pub position: usize,
    pub block: &'a mut Block,
    /// Where in the block the first row goes.
    pub offset: usize,
}

/// The rows of all runs.  // qkv [rows, stride]
pub(crate) fn segments<'a>(
    runs: &'a mut [Run<'_>],
    mut qkv: &'a mut [f32],
    stride: usize,
) -> Vec<Segment<'a>> {
    let (mut segments, mut row) = (Vec::new(), 0);
    for run in runs {
        let (mut position, mut left) = (run.position(), run.ids.len());
        let mut offset = run.cache.len() % BLOCK;
        for block in run.cache.writable() {
            let rows = left.min(BLOCK - offset);
            let (head, tail) = std::mem::take(&mut qkv).split_at_mut(rows * stride);
            segments.push(Segment { qkv: head, row, position, block, offset });
            (qkv, offset) = (tail, 0);
            (row, position, left) = (row + rows, position + rows, left - rows);
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "the caller reserved room for every row");
    }
    segments
}

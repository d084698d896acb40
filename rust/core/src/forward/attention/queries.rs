//! Query vectors in the type that the cache's keys are multiplied with: f32, or bf16 where keys are bf16.

use crate::kv_cache::rotate;
use ropechat_kernels::kernel::{Kernels, Panels, Rows};
use ropechat_kernels::quant::PackedType;
use std::ops::Range;

/// Some query vectors.
#[derive(Default)]
pub(super) struct Queries {
    dim: usize,
    values: Vec<f32>, // [queries, dim]
    bf16: Vec<u16>,   // [queries, dim up to whole pairs]
}

impl Queries {
    /// Sets the vectors, for keys in `dtype` that are rotated or not.  // values: parts of [n, dim]
    pub fn set<'a>(
        &mut self,
        (dtype, is_rotated): (PackedType, bool),
        dim: usize,
        values: impl Iterator<Item = &'a [f32]>,
        kernels: Kernels,
    ) {
        self.dim = dim;
        self.values.clear();
        values.for_each(|part| self.values.extend_from_slice(part));
        if is_rotated {
            self.values.chunks_exact_mut(dim).for_each(rotate);
        }
        if dtype == PackedType::BF16 {
            let padded = dim.next_multiple_of(2);
            self.bf16.resize(self.values.len() / dim * padded, 0);
            for (query, out) in self.values.chunks_exact(dim).zip(self.bf16.chunks_exact_mut(padded)) {
                kernels.to_bf16(query, &mut out[..dim]);
                out[dim..].fill(0);
            }
        }
    }

    /// The products of some queries with a tile's keys.  // keys [2 panels of 16 positions], scores [queries, stride]
    pub fn multiply(
        &self,
        (format, keys): (PackedType, &[u8]),
        queries: Range<usize>,
        (scores, stride): (&mut [f32], usize),
        kernels: Kernels,
    ) {
        let rows = match format {
            PackedType::BF16 => rows_of(&self.bf16, self.dim.next_multiple_of(2), queries),
            _ => rows_of(&self.values, self.dim, queries),
        };
        // A step of f32 is four bytes of a row, and so is a pair of bf16; one of f16 is multiplied with f32.
        let steps = rows.stride / size_of::<f32>();
        let keys = Panels { format, bytes: keys, panel_bytes: keys.len() / 2, count: 2, steps };
        kernels.matmul(keys, rows, scores, stride);
    }
}

/// Some rows of `width` values.
fn rows_of<T: bytemuck::NoUninit>(values: &[T], width: usize, rows: Range<usize>) -> Rows<'_> {
    let bytes = bytemuck::cast_slice(&values[rows.start * width..]);
    Rows { bytes, stride: width * size_of::<T>(), count: rows.len() }
}

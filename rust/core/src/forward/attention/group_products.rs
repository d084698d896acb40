//! Products of groups of heads, each with a matrix of its own.

use crate::forward::state::Pass;
use ropechat_kernels::compute::activations::{Activations, RowSource};
use ropechat_kernels::compute::weight::{Epilogue, RowsOf, Weight, matmul_each};

/// The products of all groups of a layer's heads.
#[derive(Default)]
pub(crate) struct GroupProducts {
    values: Vec<f32>, // [groups, rows, stride]
    rows: usize,
    stride: usize,
}

impl GroupProducts {
    /// Multiplies `rows` rows of each group with the group's matrix. `write` gets a group and a row, and writes that row's
    /// input. `input` holds all inputs in the matrices' type. The matrices have the same sizes.
    pub fn multiply(
        &mut self,
        pass: Pass<'_>,
        weights: &[Weight],
        rows: usize,
        write: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
        input: &mut Activations,
    ) {
        let Some(first) = weights.first() else { return };
        let all = weights.len() * rows;
        (self.rows, self.stride) = (rows, first.padded_out());
        let write = |place: usize, out: &mut [f32]| write(place / rows, place % rows, out);
        let (kernels, pool) = (pass.kernels, pass.pool);
        input.quantize_rows(
            all,
            first.in_features(),
            first.dtype(),
            kernels,
            pool,
            RowSource::Computed(&write),
        );
        self.values.resize(all * self.stride, 0.0);
        let jobs = weights.iter().enumerate();
        let jobs = jobs.map(|(group, weight)| RowsOf { weight, rows: group * rows..(group + 1) * rows });
        matmul_each(&jobs.collect::<Vec<_>>(), input, kernels, pool, Epilogue::Store(&mut self.values));
    }

    /// The product of a group's row.  // [stride]
    pub fn of(&self, group: usize, row: usize) -> &[f32] {
        &self.values[(group * self.rows + row) * self.stride..][..self.stride]
    }
}

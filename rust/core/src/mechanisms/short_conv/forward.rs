//! A gated short convolution: the state is its window.

use super::config::ShortConv;
use crate::forward::recurrent::conv::{Rows, convolve};
use crate::forward::recurrent::mixer::{MixBuffers, MixRows, MixedRows};
use crate::forward::state::{Pass, Run};
use crate::parts::RecurrentWeights;
use ropechat_kernels::compute::activations::{Activations, by_rows};

impl MixRows for ShortConv {
    fn mix(
        &self,
        pass: Pass<'_>,
        weights: &RecurrentWeights,
        runs: &mut [Run<'_>],
        projected: Rows<'_>,
        _: &mut Activations,
        MixBuffers { gated, mixed, .. }: &mut MixBuffers,
    ) {
        // B * x, of rows that hold B, C and x.
        let width = self.width;
        gated.resize(projected.values.len() / projected.stride * width, 0.0);
        by_rows(pass.pool, gated, width, |row, out| {
            let row = projected.row(row);
            out.copy_from_slice(&row[..width]);
            pass.kernels.mul(out, &row[2 * width..3 * width]);
        });
        convolve(pass, weights.into(), runs, Rows { values: gated, stride: width }, width, None, mixed);
    }

    fn width(&self) -> usize {
        self.width
    }

    fn write_output(&self, of: &MixedRows<'_>, row: usize, into: &mut [f32]) {
        let width = self.width;
        into.copy_from_slice(&of.buffers.mixed[row * width..][..width]);
        of.pass.kernels.mul(into, &of.projected.row(row)[width..2 * width]);
    }
}

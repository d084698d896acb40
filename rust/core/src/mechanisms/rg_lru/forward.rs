//! The real-gated linear recurrent unit: one number per channel, whose decay and input pass gates; 16 channels are one head.

use super::config::RgLru;
use crate::config::Activation;
use crate::forward::recurrent::conv::{Rows, convolve};
use crate::forward::recurrent::heads::{HeadSizes, jobs};
use crate::forward::recurrent::mixer::{MixBuffers, MixRows, MixedRows};
use crate::forward::state::{Pass, Run};
use crate::parts::RecurrentWeights;
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::compute::weight::Epilogue;
use ropechat_kernels::kernel::LANES;

impl MixRows for RgLru {
    /// 16 channels with a number each.
    fn sizes(&self) -> HeadSizes {
        HeadSizes { count: self.width.div_ceil(LANES), state: LANES, width: LANES }
    }

    fn mix(
        &self,
        pass: Pass<'_>,
        weights: &RecurrentWeights,
        runs: &mut [Run<'_>],
        projected: Rows<'_>,
        input: &mut Activations,
        MixBuffers { mixed, inner, out, .. }: &mut MixBuffers,
    ) {
        convolve(pass, weights.into(), runs, projected, self.width, None, mixed);
        gate(pass, self, weights, runs, mixed, input, inner);
        scan(pass, self, weights, runs, mixed, &inner[1], out);
    }

    fn width(&self) -> usize {
        self.width
    }

    fn write_output(&self, of: &MixedRows<'_>, row: usize, into: &mut [f32]) {
        of.gate_channels(self.activation, row, into);
    }
}

/// mixed becomes what is added to the state; inner[1] what decays it.  // mixed [rows, width], inner[1] [rows, width]
fn gate(
    pass: Pass<'_>,
    unit: &RgLru,
    weights: &RecurrentWeights,
    runs: &[Run<'_>],
    mixed: &mut [f32],
    input: &mut Activations,
    [gates, decay]: &mut [Vec<f32>; 2],
) {
    let (width, block, kernels) = (unit.width, unit.width / unit.num_heads, pass.kernels);
    let rows = mixed.len() / width;
    // Of each head the gates of the decay, then those of the input.
    let strides: Vec<usize> = weights.inner_proj.iter().map(|weight| weight.padded_out()).collect();
    gates.resize(rows * strides.iter().sum::<usize>(), 0.0);
    let mut rest = &mut gates[..];
    for (head, weight) in weights.inner_proj.iter().enumerate() {
        let (own, others) = rest.split_at_mut(rows * weight.padded_out());
        let stored = |row: usize| &mixed[row * width + head * block..][..block];
        input.quantize_rows(rows, block, weight.dtype(), kernels, pass.pool, RowSource::Stored(&stored));
        weight.matmul(input, kernels, pass.pool, Epilogue::Store(own));
        rest = others;
    }
    // Where a head's gates of a row are: of the decay at 0, of the input at `block`.
    let of_row = |row: usize, which: usize, into: &mut [f32]| {
        let mut start = 0;
        for (into, stride) in into.chunks_exact_mut(block).zip(&strides) {
            into.copy_from_slice(&gates[start + row * stride + which * block..][..block]);
            start += rows * stride;
        }
        kernels.activate_in_place(Activation::Sigmoid, into);
    };
    decay.resize(rows * width, 0.0);
    by_rows(pass.pool, decay, width, |row, decay| {
        of_row(row, 0, decay);
        kernels.mul(decay, &weights.decay_rate);
        kernels.exp(decay);
    });
    // The first position of a text is added as it is.
    let mut is_first = vec![false; rows];
    let mut first = 0;
    for run in runs {
        is_first[first] = run.cache.is_empty();
        first += run.ids.len();
    }
    by_rows(pass.pool, mixed, width, |row, values| {
        let mut gate = vec![0.0; width];
        of_row(row, 1, &mut gate);
        kernels.mul(values, &gate);
        if !is_first[row] {
            let decay = &decay[row * width..][..width];
            gate.iter_mut().zip(decay).for_each(|(factor, a)| *factor = ((1.0 - a) * (1.0 + a)).sqrt());
            kernels.mul(values, &gate);
        }
    });
}

/// h = decay h + mixed, for every row.  // mixed and decay [rows, width], out [run][heads, rows, 16]
fn scan(
    pass: Pass<'_>,
    unit: &RgLru,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    mixed: &[f32],
    decay: &[f32],
    out: &mut Vec<f32>,
) {
    let [mixed, decay] = [mixed, decay].map(|values| Rows { values, stride: unit.width });
    let mut jobs = jobs(weights, runs, unit.sizes(), out);
    pass.pool.for_each(&mut jobs, |job| {
        job.start();
        let channels = job.head * LANES..((job.head + 1) * LANES).min(unit.width);
        for (row, out) in job.rows.clone().zip(job.out.chunks_exact_mut(LANES)) {
            let (added, decay) = (&mixed.row(row)[channels.clone()], &decay.row(row)[channels.clone()]);
            for ((state, decay), added) in job.state.iter_mut().zip(decay).zip(added) {
                *state = decay * *state + added;
            }
            out.copy_from_slice(job.state);
        }
    });
}

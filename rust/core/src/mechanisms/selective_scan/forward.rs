//! The selective scan of Mamba: steps, what is learned and what is read come from the convolved input; 16 channels are one
//! head, whose state and outputs are one vector per value.

use super::config::SelectiveScan;
use crate::config::Activation;
use crate::forward::recurrent::conv::{Rows, convolve};
use crate::forward::recurrent::heads::{HeadSizes, Job, jobs};
use crate::forward::recurrent::linear::softplus;
use crate::forward::recurrent::mixer::{MixBuffers, MixRows, MixedRows};
use crate::forward::residual::{matmul, norm};
use crate::forward::state::{Pass, Run};
use crate::parts::{NormWeights, RecurrentWeights};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::kernel::{Kernels, LANES, ScanSteps};
use std::cell::RefCell;

impl MixRows for SelectiveScan {
    /// 16 channels, and the values of their state.
    fn sizes(&self) -> HeadSizes {
        HeadSizes { count: self.width.div_ceil(LANES), state: self.state_size * LANES, width: LANES }
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
        let activation = Some(self.conv_activation);
        convolve(pass, weights.into(), runs, projected, self.width, activation, mixed);
        prepare(pass, self, weights, mixed, input, inner);
        scan(pass, self, weights, runs, mixed, inner, out);
    }

    fn width(&self) -> usize {
        self.width
    }

    fn write_output(&self, of: &MixedRows<'_>, row: usize, into: &mut [f32]) {
        of.gate_channels(Activation::Silu, row, into);
    }
}

/// inner = [time step's latent | B | C], normed; and the time steps.  // mixed [rows, width], inner [rows, padded] each
fn prepare(
    pass: Pass<'_>,
    scan: &SelectiveScan,
    weights: &RecurrentWeights,
    mixed: &[f32],
    input: &mut Activations,
    [selected, steps]: &mut [Vec<f32>; 2],
) {
    let ([x_proj, dt_proj], [rank, state]) =
        (&weights.inner_proj[..], [scan.time_step_rank, scan.state_size])
    else {
        return;
    };
    let (rows, width, stride) = (mixed.len() / scan.width, scan.width, x_proj.padded_out());
    let stored = |row: usize| &mixed[row * width..][..width];
    input.quantize_rows(rows, width, x_proj.dtype(), pass.kernels, pass.pool, RowSource::Stored(&stored));
    matmul(pass, x_proj, input, selected);
    if !weights.inner_norms.is_empty() {
        by_rows(pass.pool, selected, stride, |_, row| {
            let mut rest = row;
            for (NormWeights { weight, bias, .. }, width) in
                weights.inner_norms.iter().zip([rank, state, state])
            {
                let (part, others) = rest.split_at_mut(width);
                let latent = part.to_vec();
                norm(pass.config.norm, &latent, weight, bias, part, pass.kernels);
                rest = others;
            }
        });
    }
    let latent = |row: usize| &selected[row * stride..][..rank];
    input.quantize_rows(rows, rank, dt_proj.dtype(), pass.kernels, pass.pool, RowSource::Stored(&latent));
    matmul(pass, dt_proj, input, steps);
    by_rows(pass.pool, steps, dt_proj.padded_out(), |_, row| {
        row.iter_mut().for_each(|step| *step = softplus(*step));
    });
}

/// Updates every channel's state by every row, and reads it.  // mixed [rows, width], out [run][heads, rows, 16]
fn scan(
    pass: Pass<'_>,
    scan: &SelectiveScan,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    mixed: &[f32],
    [selected, steps]: &[Vec<f32>; 2],
    out: &mut Vec<f32>,
) {
    let strides = [&weights.inner_proj[0], &weights.inner_proj[1]].map(|weight| weight.padded_out());
    let mixed = Rows { values: mixed, stride: scan.width };
    let selected = Rows { values: selected, stride: strides[0] };
    let steps = Rows { values: steps, stride: strides[1] };
    let mut jobs = jobs(weights, runs, scan.sizes(), out);
    pass.pool.for_each(&mut jobs, |job| {
        SCRATCH.with_borrow_mut(|scratch| {
            job.start();
            run(job, scan, weights, [mixed, selected, steps], scratch, pass.kernels);
        });
    });
}

/// What 16 channels need of some rows.
#[derive(Default)]
struct Scratch {
    learned: Vec<f32>, // [rows, state_size]
    queries: Vec<f32>, // [rows, state_size]
    steps: Vec<f32>,   // [rows, 16]
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

fn run(
    job: &mut Job<'_>,
    scan: &SelectiveScan,
    weights: &RecurrentWeights,
    [mixed, selected, steps]: [Rows<'_>; 3],
    scratch: &mut Scratch,
    kernels: Kernels,
) {
    let (keys, first_channel) = (scan.state_size, job.head * LANES);
    let channels = first_channel..(first_channel + LANES).min(scan.width);
    for rows in job.portions() {
        let Scratch { learned, queries, steps: own_steps } = &mut *scratch;
        learned.clear();
        queries.clear();
        own_steps.clear();
        for row in rows.clone() {
            let of_row = &selected.row(row)[scan.time_step_rank..];
            learned.extend_from_slice(&of_row[..keys]);
            queries.extend_from_slice(&of_row[keys..2 * keys]);
            own_steps.extend_from_slice(&steps.row(row)[first_channel..][..LANES]);
        }
        let out = &mut job.out[(rows.start - job.rows.start) * LANES..][..rows.len() * LANES];
        for (row, out) in rows.clone().zip(out.chunks_exact_mut(LANES)) {
            out.fill(0.0);
            out[..channels.len()].copy_from_slice(&mixed.row(row)[channels.clone()]);
        }
        kernels.selective_scan(ScanSteps {
            keys,
            state: job.state,
            rates: &weights.decay_rate[job.head * keys * LANES..][..keys * LANES],
            steps: own_steps,
            learned,
            queries,
            values: out,
        });
        for (row, out) in rows.zip(out.chunks_exact_mut(LANES)) {
            let (out, input) = (&mut out[..channels.len()], &mixed.row(row)[channels.clone()]);
            kernels.mul_add(out, &weights.d[channels.clone()], input);
        }
    }
}

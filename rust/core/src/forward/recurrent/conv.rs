//! The causal depthwise convolution over the last positions, and the window of inputs that it keeps.

use crate::forward::state::{Pass, Run};
use crate::parts::RecurrentWeights;
use ropechat_kernels::compute::activations::by_rows;
use ropechat_kernels::kernel::Activation;
use std::ops::Range;

/// Rows of a matmul's output.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl<'a> Rows<'a> {
    pub fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.stride]
    }
}

/// Where a row's earlier inputs are.
pub(crate) struct Source<'a> {
    /// The first row of its run.
    first: usize,
    /// Inputs before the run; None: zeros.  // [positions, channels]
    window: Option<&'a [f32]>,
}

impl<'a> Source<'a> {
    /// The inputs of the position `back` before a row, at most `positions` before its run; None before the first
    /// position.
    pub fn input(
        &self,
        input: Rows<'a>,
        row: usize,
        back: usize,
        channels: usize,
        positions: usize,
    ) -> Option<&'a [f32]> {
        match ((row - self.first).checked_sub(back), self.window) {
            (Some(_), _) => Some(&input.row(row - back)[..channels]),
            (None, Some(window)) => {
                let place = positions + row - self.first - back;
                Some(&window[place * channels..][..channels])
            }
            (None, None) => None,
        }
    }
}

/// A convolution's weights, and where its inputs are kept.
#[derive(Clone, Copy)]
pub(crate) struct Convolution<'a> {
    pub window: Window,
    pub weight: &'a [f32], // [positions, channels]
    /// Empty without one.  // [channels]
    pub bias: &'a [f32],
}

/// Where inputs are kept.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// The layer's place among the layers with a recurrent state.
    pub state_layer: usize,
    /// The first value of that state.
    pub start: usize,
}

impl<'a> From<&'a RecurrentWeights> for Convolution<'a> {
    fn from(weights: &'a RecurrentWeights) -> Self {
        let window = Window { state_layer: weights.state_layer, start: 0 };
        Self { window, weight: &weights.conv, bias: &weights.conv_bias }
    }
}

/// Keeps each run's last inputs in its next state; returns where each row's earlier inputs are.  // input [rows, >= channels]
pub(crate) fn keep_inputs<'a>(
    Window { state_layer, start }: Window,
    runs: &'a mut [Run<'_>],
    input: Rows<'_>,
    channels: usize,
    positions: usize,
) -> Vec<(Range<usize>, Source<'a>)> {
    let (mut sources, mut first) = (Vec::new(), 0);
    for run in runs {
        let rows = run.ids.len();
        let (before, next) = run.cache.recurrent_layer(state_layer);
        let values = start..start + positions * channels;
        let before = before.map(|state| &state[values.clone()]);
        for (position, kept) in next[values].chunks_exact_mut(channels).enumerate() {
            // Counted from the window's beginning, the last inputs are rows..rows + positions.
            match ((rows + position).checked_sub(positions), before) {
                (Some(row), _) => kept.copy_from_slice(&input.row(first + row)[..channels]),
                (None, None) => kept.fill(0.0),
                (None, Some(window)) => {
                    kept.copy_from_slice(&window[(rows + position) * channels..][..channels]);
                }
            }
        }
        sources.push((first..first + rows, Source { first, window: before }));
        first += rows;
    }
    sources
}

/// mixed = act(bias + the sum over the last positions of weight * input). Keeps each run's last inputs in its next state.
///
/// // input [rows, >= channels], mixed [rows, channels]
pub(crate) fn convolve(
    pass: Pass<'_>,
    Convolution { window, weight, bias }: Convolution<'_>,
    runs: &mut [Run<'_>],
    input: Rows<'_>,
    channels: usize,
    activation: Option<Activation>,
    mixed: &mut Vec<f32>,
) {
    let positions = weight.len() / channels - 1;
    let sources = keep_inputs(window, runs, input, channels, positions);
    let first = sources.last().map_or(0, |(rows, _)| rows.end);
    let sources: Vec<&Source<'_>> =
        sources.iter().flat_map(|(rows, source)| rows.clone().map(move |_| source)).collect();
    mixed.resize(first * channels, 0.0);
    by_rows(pass.pool, mixed, channels, |row, out| {
        let source = sources[row];
        match bias {
            [] => out.fill(0.0),
            bias => out.copy_from_slice(bias),
        }
        for (tap, weight) in weight.chunks_exact(channels).enumerate() {
            if let Some(x) = source.input(input, row, positions - tap, channels, positions) {
                pass.kernels.mul_add(out, weight, x);
            }
        }
        if let Some(activation) = activation {
            pass.kernels.activate_in_place(activation, out);
        }
    });
}

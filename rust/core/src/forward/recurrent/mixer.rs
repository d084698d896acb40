//! What a recurrent mixer does between its two projections.

use super::conv::Rows;
use super::heads::{HeadOutputs, HeadSizes};
use crate::forward::state::{Pass, Run};
use crate::parts::RecurrentWeights;
use ropechat_kernels::compute::activations::Activations;
use ropechat_kernels::kernel::Activation;

/// What is computed between the projections.
#[derive(Default)]
pub(crate) struct MixBuffers {
    /// The input of the convolution, where that is not the projection.  // [rows, channels]
    pub gated: Vec<f32>,
    /// The convolution's result.  // [rows, channels]
    pub mixed: Vec<f32>,
    /// Products of the matrices between the input and the output projection.
    pub inner: [Vec<f32>; 2],
    /// Outputs of heads with a state, per run: [heads, rows, width].
    pub out: Vec<f32>,
}

/// The rows that a mixer has computed.
pub(crate) struct MixedRows<'a> {
    pub pass: Pass<'a>,
    pub weights: &'a RecurrentWeights,
    pub projected: Rows<'a>,
    pub buffers: &'a MixBuffers,
    /// Those of heads with a state.
    pub outputs: HeadOutputs<'a>,
}

impl MixedRows<'_> {
    /// The output of channels by themselves, gated by the other half of the projection.
    pub fn gate_channels(&self, activation: Activation, row: usize, into: &mut [f32]) {
        self.outputs.gather(row, into);
        let (width, mut gated) = (into.len(), vec![0.0; into.len()]);
        self.pass.kernels.gate(activation, &self.projected.row(row)[width..2 * width], into, &mut gated);
        into.copy_from_slice(&gated);
    }
}

/// A recurrent mixer.
pub(crate) trait MixRows: Sync {
    /// The sizes of its heads with a state.
    fn sizes(&self) -> HeadSizes {
        HeadSizes::default()
    }

    /// From the projected rows to what [`Self::write_output`] reads; writes the next state of each run.
    fn mix(
        &self,
        pass: Pass<'_>,
        weights: &RecurrentWeights,
        runs: &mut [Run<'_>],
        projected: Rows<'_>,
        input: &mut Activations,
        buffers: &mut MixBuffers,
    );

    /// Values of a row that the output projection reads.
    fn width(&self) -> usize;

    /// Those values.
    fn write_output(&self, of: &MixedRows<'_>, row: usize, into: &mut [f32]);
}

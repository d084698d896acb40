//! Mixers with a recurrent state: a projection, a causal convolution over the last positions, a state per head or channel
//! that every position updates, and the output projection back to the residual stream.
//!
//! Law 1: every position's operations and their order do not depend on how the text is split into runs. Work is shared
//! over rows where positions do not depend on each other, else over sequences and heads.

pub(crate) mod conv;
pub(crate) mod heads;
pub(crate) mod linear;
pub(crate) mod mixer;

use super::residual::{BranchBuffers, add_residual, matmul, normed_input};
use super::state::{Pass, Run};
use crate::config::{LinearAttention, LinearRule, Recurrent};
use crate::mechanisms::mixers;
use crate::parts::RecurrentWeights;
pub(crate) use conv::Rows;
use conv::convolve;
use heads::{HeadOutputs, HeadSizes};
use linear::OutputGate;
use mixer::{MixBuffers, MixRows, MixedRows};
use ropechat_kernels::compute::activations::{Activations, RowSource};

/// Buffers of recurrent mixers.
#[derive(Default)]
pub(super) struct RecurrentBuffers {
    projected: Vec<f32>, // [rows, padded in_width]
    mix: MixBuffers,
}

macro_rules! all_mixers {
    ($($name:ident: $facts:ident,)+) => {
        /// The model's mixer; None where attention keeps the state.
        fn mixer_of<'a>(pass: Pass<'a>) -> Option<&'a dyn MixRows> {
            match pass.config.recurrent.as_ref()? {
                Recurrent::Linear(mixer) => Some(mixer),
                Recurrent::Window(_) => None,
                $( Recurrent::$facts(mixer) => Some(mixer), )+
            }
        }
    };
}
mixers!(all_mixers);

/// Everything but the output projection, which [`add_mixed`] does: so that attention of the same layer can read x as it came.
pub(super) fn mix(
    pass: Pass<'_>,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    x: &[f32],
    branch: &mut BranchBuffers,
    buffers: &mut RecurrentBuffers,
) {
    let (Some(mixer), RecurrentBuffers { projected, mix }) = (mixer_of(pass), buffers) else { return };
    normed_input(pass, weights.input_norm.as_ref(), weights.in_proj.dtype(), x, &mut branch.input);
    matmul(pass, &weights.in_proj, &branch.input, projected);
    let projected = Rows { values: projected, stride: weights.in_proj.padded_out() };
    mixer.mix(pass, weights, runs, projected, &mut branch.input, mix);
}

/// x += out_proj(what [`mix`] left).  // x [rows, hidden_size]
pub(super) fn add_mixed(
    pass: Pass<'_>,
    weights: &RecurrentWeights,
    runs: &[Run<'_>],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    RecurrentBuffers { projected, mix }: &RecurrentBuffers,
) {
    let Some(mixer) = mixer_of(pass) else { return };
    let (rows, dtype) = (pass.rows(x), weights.out_proj.dtype());
    let of = MixedRows {
        pass,
        weights,
        projected: Rows { values: projected, stride: weights.in_proj.padded_out() },
        buffers: mix,
        outputs: HeadOutputs::new(runs, mixer.sizes(), &mix.out),
    };
    let output = |row: usize, into: &mut [f32]| mixer.write_output(&of, row, into);
    let source = RowSource::Computed(&output);
    branch.input.quantize_rows(rows, mixer.width(), dtype, pass.kernels, pass.pool, source);
    add_residual(pass, &weights.out_proj, weights.out_norm.as_ref(), weights.factors, branch, x);
}

impl MixRows for LinearAttention {
    fn sizes(&self) -> HeadSizes {
        linear::sizes(self)
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
        linear::expand_latents(pass, self, weights, projected, input, inner);
        let activation = Some(self.conv_activation);
        convolve(pass, weights.into(), runs, projected, self.conv_width(), activation, mixed);
        let inputs = linear::inputs(self, weights, projected, inner);
        linear::attend(pass, self, weights, runs, inputs, mixed, out);
    }

    fn width(&self) -> usize {
        self.values_width()
    }

    fn write_output(&self, of: &MixedRows<'_>, row: usize, into: &mut [f32]) {
        let factor = match self.rule {
            LinearRule::Mamba2 { multipliers: [factor, ..], .. } => factor,
            _ => 1.0,
        };
        let norm = of.weights.norm.as_ref();
        let gate = OutputGate { activation: self.gate, factor, output: self.output, norm };
        let z = linear::inputs(self, of.weights, of.projected, &of.buffers.inner).gate(row);
        of.outputs.gather(row, into);
        gate.apply(z, into, of.pass.kernels);
    }
}

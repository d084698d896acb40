//! Short convolutions of a layer's branches: of keys and values, and of what attention and the MLP add.

use super::parts::ShortConvolution;
use crate::config::ResidualFactors;
use crate::forward::recurrent::conv::{Convolution, Rows, Window, convolve};
use crate::forward::residual::add_result;
use crate::forward::state::{Pass, Run};
use crate::forward::step::{Branch, Step};
use crate::parts::Layer;
use ropechat_kernels::compute::activations::{Activations, by_rows};

/// Buffers of the convolutions.
#[derive(Default)]
pub(crate) struct Steps {
    copied: Vec<f32>, // [rows, channels]
    result: Vec<f32>, // [rows, channels]
}

impl Step for Steps {
    /// Keys and values become their convolution.
    fn after_projection(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        runs: &mut [Run<'_>],
        (qkv, stride): (&mut [f32], usize),
        _: &mut Activations,
    ) {
        let (Some(weights), Some(attention)) = (&layer.mechanisms.branch_convolution, &layer.attention)
        else {
            return;
        };
        let (Self { copied, result }, channels) = (self, weights.kv.channels);
        let first = attention.heads.q_width();
        copied.clear();
        qkv.chunks_exact(stride).for_each(|row| copied.extend_from_slice(&row[first..][..channels]));
        let input = Rows { values: copied, stride: channels };
        convolve(pass, (&weights.kv).into(), runs, input, channels, None, result);
        by_rows(pass.pool, qkv, stride, |row, out| {
            out[first..][..channels].copy_from_slice(&result[row * channels..][..channels]);
        });
    }

    fn adds_results(&self, layer: &Layer) -> bool {
        layer.mechanisms.branch_convolution.is_some()
    }

    /// x += the convolution of a branch's result.
    fn add_result(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        branch: Branch,
        runs: &mut [Run<'_>],
        result: Rows<'_>,
        x: &mut [f32],
    ) {
        let Some(weights) = &layer.mechanisms.branch_convolution else { return };
        let convolution = if branch == Branch::Attention { &weights.attention } else { &weights.mlp };
        let channels = convolution.channels;
        convolve(pass, convolution.into(), runs, result, channels, None, &mut self.result);
        add_result(pass, None, ResidualFactors::ONE, &self.result, channels, x);
    }
}

impl<'a> From<&'a ShortConvolution> for Convolution<'a> {
    fn from(convolution: &'a ShortConvolution) -> Self {
        let ShortConvolution { state_layer, state_start: start, weight, .. } = convolution;
        Self { window: Window { state_layer: *state_layer, start: *start }, weight, bias: &[] }
    }
}

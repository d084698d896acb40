//! Short convolutions of a layer's branches: of keys and values, and of what attention and the MLP add.

use super::recurrent::{Rows, convolve};
use super::residual::add_result;
use super::state::{Pass, Run};
use crate::config::ResidualFactors;
use crate::parts::ShortConvolution;
use ropechat_kernels::compute::activations::by_rows;

/// Buffers of the convolutions.
#[derive(Default)]
pub(super) struct BranchConvolutionBuffers {
    copied: Vec<f32>, // [rows, channels]
    result: Vec<f32>, // [rows, channels]
}

/// Columns of the rows from `first` on become their convolution.  // rows [rows, stride]
pub(super) fn convolve_columns(
    pass: Pass<'_>,
    convolution: &ShortConvolution,
    runs: &mut [Run<'_>],
    (rows, stride): (&mut [f32], usize),
    first: usize,
    BranchConvolutionBuffers { copied, result }: &mut BranchConvolutionBuffers,
) {
    let channels = convolution.channels;
    copied.clear();
    rows.chunks_exact(stride).for_each(|row| copied.extend_from_slice(&row[first..][..channels]));
    let input = Rows { values: copied, stride: channels };
    convolve(pass, convolution.into(), runs, input, channels, None, result);
    by_rows(pass.pool, rows, stride, |row, out| {
        out[first..][..channels].copy_from_slice(&result[row * channels..][..channels]);
    });
}

/// x += the convolution of a branch's result.  // branch [rows, stride], x [rows, hidden_size]
pub(super) fn add_convolved(
    pass: Pass<'_>,
    convolution: &ShortConvolution,
    runs: &mut [Run<'_>],
    branch: Rows<'_>,
    BranchConvolutionBuffers { result, .. }: &mut BranchConvolutionBuffers,
    x: &mut [f32],
) {
    let channels = convolution.channels;
    convolve(pass, convolution.into(), runs, branch, channels, None, result);
    add_result(pass, None, ResidualFactors::ONE, result, channels, x);
}

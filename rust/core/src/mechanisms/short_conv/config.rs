//! The facts of a gated short convolution.

use crate::config::{Bias, MixerFacts};

/// out_proj(C * conv(B * x)), where B, C and x are projections of the row (lfm2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConv {
    /// Channels: those of the residual stream.
    pub width: usize,
    /// `conv_L_cache`: positions that the convolution sees, its own included.
    pub kernel_size: usize,
    /// Biases of the convolution and of both projections.
    pub bias: Bias,
}

impl MixerFacts for ShortConv {
    fn window(&self) -> (usize, usize) {
        (self.width, self.kernel_size - 1)
    }
}

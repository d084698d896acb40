//! The facts of the selective scan.

use crate::config::{Bias, MixerFacts};
use ropechat_kernels::kernel::{Activation, LANES};

/// The selective scan of Mamba: per channel, h = exp(-exp(A_log) dt) h + dt x B, out = C h + D x, times silu(z).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SelectiveScan {
    /// Channels.
    pub width: usize,
    /// Values of a channel's state.
    pub state_size: usize,
    /// Width of the input of the steps' projection.
    pub time_step_rank: usize,
    /// Positions that the convolution before it sees.
    pub conv_kernel_size: usize,
    /// Bias of that convolution.
    pub conv_bias: Bias,
    /// What follows it (`hidden_act`).
    pub conv_activation: Activation,
    /// Bias of the input and output projections.
    pub bias: Bias,
}

impl MixerFacts for SelectiveScan {
    fn window(&self) -> (usize, usize) {
        (self.width, self.conv_kernel_size - 1)
    }

    fn matrices(&self) -> (usize, usize, usize) {
        (self.width.div_ceil(LANES), self.state_size, LANES)
    }
}

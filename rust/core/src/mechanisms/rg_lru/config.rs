//! The facts of RG-LRU.

use crate::config::MixerFacts;
use ropechat_kernels::kernel::{Activation, LANES};

/// The real-gated linear recurrent unit (De et al. 2024, Griffin): per channel, h = a h + sqrt(1 - a^2) i x, out = h gelu(y), where
/// a = exp(-8 softplus(recurrent_param) r), and r and i are sigmoid gates of a head's channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RgLru {
    /// Channels.
    pub width: usize,
    /// Blocks of channels that each have their own gates; divides `width`.
    pub num_heads: usize,
    /// Positions that the convolution before it sees.
    pub conv_kernel_size: usize,
    /// The activation of the other branch y.
    pub activation: Activation,
}

impl MixerFacts for RgLru {
    fn window(&self) -> (usize, usize) {
        (self.width, self.conv_kernel_size - 1)
    }

    fn matrices(&self) -> (usize, usize, usize) {
        (self.width.div_ceil(LANES), 1, LANES)
    }
}

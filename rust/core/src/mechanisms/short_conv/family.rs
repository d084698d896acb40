//! The specs of a gated short convolution.

use super::config::ShortConv;
use crate::family::tensors::{BuildMixer, Prefix};
use crate::parts::{RecurrentWeights, Spec};

impl BuildMixer for ShortConv {
    fn specs(&self, at: &Prefix<'_>) -> RecurrentWeights<Spec> {
        let ShortConv { width: hidden, kernel_size, bias } = *self;
        let names = &at.config.names.recurrent;
        let out_proj = at.matrix(&[(names.out_proj, hidden)], hidden, bias);
        RecurrentWeights {
            conv: at.by_position(&[(names.conv[0].weight, hidden)], kernel_size, |_| {}),
            conv_bias: at.conv_bias(hidden, bias),
            ..at.mixer(at.one_in_proj(3 * hidden, bias), out_proj)
        }
    }
}

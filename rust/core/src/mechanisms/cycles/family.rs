//! The specs of stacks that run in cycles.

use super::config::{Cycles, Stack};
use super::parts::{InLayer, Outside};
use crate::family::tensors::{Build, Prefix};
use crate::parts::{Rows, Spec};

impl Build for Cycles {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn outside(&self, at: &Prefix<'_>) -> Option<Outside<Spec>> {
        Some(Outside { low_state: at.numbers("z_L_init", Rows::all(at.config.hidden_size)) })
    }

    fn numbered(&self, layer: usize) -> Option<(&'static str, usize)> {
        let stack = match self.stack(layer) {
            Stack::High => "H_module.",
            Stack::Low => "L_module.",
        };
        Some((stack, layer % self.num_layers_per_stack))
    }
}

//! Two stacks of layers that run in cycles, each with a state: what its last run left, normed.

use super::residual::norm_or_copy;
use super::state::Pass;
use crate::config::Stack;
use crate::model::Model;
use ropechat_kernels::compute::activations::by_rows;

/// The states of both stacks.
#[derive(Default)]
pub(super) struct CycleStates {
    high: Vec<f32>, // [rows, hidden_size]
    low: Vec<f32>,  // [rows, hidden_size]
}

impl CycleStates {
    /// Where a stack starts: keeps what the one before it left, and starts from the sum of both states. The embedding is the
    /// high one's first state, the low one's is learned.  // x [rows, hidden_size]
    pub fn before_layer(&mut self, pass: Pass<'_>, model: &Model, layer: usize, x: &mut [f32]) {
        let Some(cycles) = pass.config.cycles else { return };
        if !layer.is_multiple_of(cycles.num_layers_per_stack) {
            return;
        }
        let (hidden_size, CycleStates { high, low }) = (pass.config.hidden_size, self);
        match layer.checked_sub(1).map(|last| cycles.stack(last)) {
            None => {
                high.clear();
                high.extend_from_slice(x);
                *low = model.outside.low_state.repeat(pass.rows(x));
            }
            Some(stack) => {
                let state = if stack == Stack::High { &mut *high } else { &mut *low };
                by_rows(pass.pool, state, hidden_size, |row, state| {
                    norm_or_copy(
                        pass,
                        &x[row * hidden_size..][..hidden_size],
                        model.outside.norm.as_ref(),
                        state,
                    );
                });
            }
        }
        by_rows(pass.pool, x, hidden_size, |row, x| {
            let at = row * hidden_size..(row + 1) * hidden_size;
            x.copy_from_slice(&high[at.clone()]);
            pass.kernels.add(x, &low[at]);
        });
    }
}

//! The states of stacks that run in cycles: what its last run left, normed.

use super::config::Stack;
use crate::forward::residual::norm_or_copy;
use crate::forward::state::Run;
use crate::forward::step::{Flow, Step};
use crate::parts::Layer;
use ropechat_kernels::compute::activations::by_rows;

/// The states of both stacks.
#[derive(Default)]
pub(crate) struct Steps {
    high: Vec<f32>, // [rows, hidden_size]
    low: Vec<f32>,  // [rows, hidden_size]
}

impl Step for Steps {
    /// Where a stack starts: keeps what the one before it left, and starts from the sum of both states. The embedding is the
    /// high one's first state, the low one's is learned.  // x [rows, hidden_size]
    fn enter_layer(&mut self, flow: &mut Flow<'_>, layer: &Layer, _: &mut [Run<'_>]) {
        let Flow { pass, model, x, .. } = flow;
        let pass = *pass;
        let (Some(cycles), Some(outside)) = (pass.config.mechanisms.cycles, &model.outside.mechanisms.cycles)
        else {
            return;
        };
        let layer = layer.index;
        if !layer.is_multiple_of(cycles.num_layers_per_stack) {
            return;
        }
        let (hidden_size, Self { high, low }) = (pass.config.hidden_size, self);
        match layer.checked_sub(1).map(|last| cycles.stack(last)) {
            None => {
                high.clear();
                high.extend_from_slice(x);
                *low = outside.low_state.repeat(pass.rows(x));
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

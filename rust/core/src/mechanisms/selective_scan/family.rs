//! The specs of the selective scan.

use super::config::SelectiveScan;
use crate::config::Bias;
use crate::family::tensors::{BuildMixer, Prefix};
use crate::parts::{RecurrentWeights, Rows, Spec};
use ropechat_kernels::kernel::LANES;

impl BuildMixer for SelectiveScan {
    fn specs(&self, at: &Prefix<'_>) -> RecurrentWeights<Spec> {
        let (names, hidden) = (&at.config.names.recurrent, at.config.hidden_size);
        let SelectiveScan { width, state_size: state, time_step_rank: rank, .. } = *self;
        let widths = [rank, state, state];
        let rate = at.decay_rate();
        let decay_rate = at.table(names.a_log, width, state).prepared(move |by_channel| {
            let mut rates = vec![0.0; width.next_multiple_of(LANES) * state];
            for (channel, values) in by_channel.chunks_exact(state).enumerate() {
                let first = channel / LANES * LANES * state + channel % LANES;
                for (key, &value) in values.iter().enumerate() {
                    rates[first + key * LANES] = rate(value);
                }
            }
            rates
        });
        let out_proj = at.matrix(&[(names.out_proj, hidden)], width, self.bias);
        RecurrentWeights {
            conv: at.by_position(&[(names.conv[0].weight, width)], self.conv_kernel_size, |_| {}),
            conv_bias: at.conv_bias(width, self.conv_bias),
            decay_rate,
            d: at.numbers(names.d, Rows::all(width)),
            inner_proj: vec![
                at.matrix(&[(names.inner[0], rank + 2 * state)], width, Bias::None),
                at.matrix(&[(names.inner[1], width)], rank, Bias::Added),
            ],
            inner_norms: names.inner_norms.iter().zip(widths).map(|(&name, n)| at.norm(name, n)).collect(),
            ..at.mixer(at.one_in_proj(2 * width, self.bias), out_proj)
        }
    }
}

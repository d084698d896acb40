//! The specs of RG-LRU.

use super::config::RgLru;
use crate::config::{Bias, Stored, Tensor};
use crate::family::tensors::{BuildMixer, Prefix};
use crate::parts::{MatrixSpec, RecurrentWeights, Rows, Spec, TensorRows};

/// c in the decay of RG-LRU (De et al. 2024, section 2.4).
const RG_LRU_SHARPNESS: f32 = 8.0;

impl BuildMixer for RgLru {
    fn specs(&self, at: &Prefix<'_>) -> RecurrentWeights<Spec> {
        let (names, hidden) = (&at.config.names.recurrent, at.config.hidden_size);
        let RgLru { width, num_heads: heads, conv_kernel_size, .. } = *self;
        let block = width / heads;
        // All heads' matrices are in one tensor [head, in, out].
        let gates = |head: usize| {
            let rows = Rows::range(head * block, block);
            let weight = |name: &Tensor| TensorRows {
                name: at.name(name.weight),
                shape: vec![heads, block, block],
                stored: Stored::InOut,
                rows,
                transposed: None,
            };
            let bias = |name: &Tensor| TensorRows { shape: vec![heads, block], ..at.vector(name.bias, rows) };
            let [weights, biases] = [&weight as &dyn Fn(&Tensor) -> TensorRows, &bias]
                .map(|rows| names.inner.iter().map(rows).collect());
            MatrixSpec::stacked(weights, biases, block)
        };
        let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let rate = move |x| -RG_LRU_SHARPNESS * softplus(x);
        let out_proj = at.matrix(&[(names.out_proj, hidden)], width, Bias::Added);
        RecurrentWeights {
            conv: at.by_position(&[(names.conv[0].weight, width)], conv_kernel_size, |_| {}),
            conv_bias: at.conv_bias(width, Bias::Added),
            decay_rate: at.numbers(names.a_log, Rows::all(width)).each(rate),
            inner_proj: (0..heads).map(gates).collect(),
            ..at.mixer(at.one_in_proj(2 * width, Bias::Added), out_proj)
        }
    }
}

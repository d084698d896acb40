//! The specs of convolutions of queries and keys.

use super::config::QkConvolution;
use super::parts::{InLayer, Outside};
use crate::config::{Tensor, tensor};
use crate::family::tensors::{Build, Prefix};
use crate::parts::{MatrixSpec, NumberSpec, Rows, Spec, TensorRows};

impl Build for QkConvolution {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        const DEPTHWISE: Tensor = tensor!("self_attn.qkv_proj.conv_qk_depthwise");
        const GROUPED: Tensor = tensor!("self_attn.qkv_proj.conv_qk_grouped");
        let (dim, width) = (at.heads.head_dim, at.heads.qk_width());
        let QkConvolution { depthwise_size, grouped_size, .. } = *self;
        // q, k, delayed and other values.
        let qkv = at.qkv();
        let of_head = |head: usize| {
            let rows = Rows::range(head * dim, dim);
            let weight =
                TensorRows { shape: vec![width, dim, grouped_size], ..at.vector(GROUPED.weight, rows) };
            let bias = TensorRows { shape: vec![width], ..at.vector(GROUPED.bias, rows) };
            MatrixSpec::stacked(vec![weight], vec![bias], dim * grouped_size)
        };
        Some(InLayer {
            depthwise: at.by_position(&[(DEPTHWISE.weight, width)], depthwise_size, |_| {}),
            depthwise_bias: at.numbers(DEPTHWISE.bias, Rows::all(width)),
            first_values: match qkv.biases.get(2) {
                Some(bias) => NumberSpec::vectors([bias.clone()]),
                None => NumberSpec::constant(0.0, qkv.weights[2].rows.count()),
            },
            grouped: (0..width / dim).map(of_head).collect(),
            state_layer: at.config.state_layer(at.index),
        })
    }
}

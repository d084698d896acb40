//! Compressed convolutional attention: queries and keys pass a convolution per channel and one per head, and the mean of a
//! query and its key is added; half of the values are those of the position before (Figliolia et al. 2025,
//! <https://arxiv.org/abs/2510.04476>).

use crate::forward::recurrent::conv::{Rows, Source, Window, keep_inputs};
use crate::forward::residual::matmul;
use crate::forward::state::{Pass, Run};
use crate::forward::step::Step;
use crate::parts::Layer;
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};

/// Buffers of the convolutions.
#[derive(Default)]
pub(crate) struct Steps {
    head: Vec<f32>,   // [rows, padded head_dim]
    result: Vec<f32>, // [rows, qkv_width]
}

impl Step for Steps {
    /// Rows of [q | k | delayed values | other values] become [q | k | values].
    fn after_projection(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        runs: &mut [Run<'_>],
        (qkv, stride): (&mut [f32], usize),
        input: &mut Activations,
    ) {
        let (Some(weights), Some(attention)) = (&layer.mechanisms.qk_convolution, &layer.attention) else {
            return;
        };
        let Some(sizes) = pass.config.mechanisms.qk_convolution else { return };
        let (heads, kernels, pool) = (attention.heads, pass.kernels, pass.pool);
        let (dim, width, all) = (heads.head_dim, heads.qk_width(), heads.qkv_width());
        let (rows, half, taps) = (qkv.len() / stride, (all - width) / 2, sizes.grouped_size);
        let positions = sizes.positions();
        let original = Rows { values: qkv, stride };
        let sources = keep_inputs(
            Window { state_layer: weights.state_layer, start: 0 },
            runs,
            original,
            sizes.channels,
            positions,
        );
        let sources: Vec<&Source<'_>> =
            sources.iter().flat_map(|(rows, source)| rows.clone().map(move |_| source)).collect();
        // The inputs of the position `back` before a row; None before the first position.
        let earlier =
            |row: usize, back: usize| sources[row].input(original, row, back, sizes.channels, positions);
        let Self { head: product, result } = self;
        result.resize(rows * all, 0.0);
        for (head, weight) in weights.grouped.iter().enumerate() {
            let columns = head * dim..(head + 1) * dim;
            let of_row = |row: usize, out: &mut [f32]| {
                let mut channels = vec![0.0; dim];
                for tap in 0..taps {
                    channels.copy_from_slice(&weights.depthwise_bias[columns.clone()]);
                    for (place, weight) in weights.depthwise.chunks_exact(width).enumerate() {
                        let back = (taps - 1 - tap) + (sizes.depthwise_size - 1 - place);
                        if let Some(input) = earlier(row, back) {
                            kernels.mul_add(&mut channels, &weight[columns.clone()], &input[columns.clone()]);
                        }
                    }
                    for (out, channel) in out.iter_mut().skip(tap).step_by(taps).zip(&channels) {
                        *out = *channel;
                    }
                }
            };
            let dtype = weight.dtype();
            input.quantize_rows(rows, dim * taps, dtype, kernels, pool, RowSource::Computed(&of_row));
            matmul(pass, weight, input, product);
            by_rows(pool, result, all, |row, out| {
                out[columns.clone()].copy_from_slice(&product[row * weight.padded_out()..][..dim]);
            });
        }
        let (queries, group) = (heads.q_width(), heads.group_size());
        by_rows(pool, result, all, |row, out| {
            let (own, mut means) = (original.row(row), vec![0.0; heads.num_key_value_heads * dim]);
            for head in 0..heads.num_attention_heads {
                let (query, key) = (head * dim, head / group * dim);
                for i in 0..dim {
                    let mean = (own[query + i] + own[queries + key + i]) * 0.5;
                    out[query + i] += mean;
                    means[key + i] += mean;
                }
            }
            means.iter_mut().for_each(|mean| *mean /= group as f32);
            kernels.add(&mut out[queries..width], &means);
            out[width..width + half].copy_from_slice(&own[width + half..all]);
            match earlier(row, 1) {
                Some(before) => out[width + half..].copy_from_slice(&before[width..width + half]),
                None => out[width + half..].copy_from_slice(&weights.first_values),
            }
        });
        by_rows(pool, qkv, stride, |row, qkv| qkv[..all].copy_from_slice(&result[row * all..][..all]));
    }
}

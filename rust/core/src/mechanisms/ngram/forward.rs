//! Embeddings of hashed n-grams: a table's entry for the last tokens is added to every residual stream, after a gate
//! that compares it with the stream, together with its dilated convolution over the previous positions.

use super::parts::InLayer;
use crate::config::Activation;
use crate::forward::recurrent::conv::{Rows, Source, Window, keep_inputs};
use crate::forward::residual::{dot, matmul, norm_groups};
use crate::forward::state::{Pass, Run};
use crate::forward::step::{Flow, Step};
use crate::parts::Layer;
use ropechat_kernels::compute::activations::{RowSource, by_rows};

/// Buffers of embeddings of n-grams.
#[derive(Default)]
pub(crate) struct Steps {
    projected: Vec<f32>, // [rows, padded (hc_mult + 1) * hidden_size]
    gated: Vec<f32>,     // [rows, hc_mult, hidden_size]
    normed: Vec<f32>,    // [rows, hc_mult, hidden_size]
}

/// A gate's logit is the signed root of the product, which is at least this.
const LEAST_GATE: f32 = 1e-6;

impl Step for Steps {
    /// streams += value * gate + silu(conv(norm(value * gate))), in a layer with such an embedding.
    fn enter_layer(&mut self, flow: &mut Flow<'_>, layer: &Layer, runs: &mut [Run<'_>]) {
        let Flow { pass, streams, branch, .. } = flow;
        let pass = *pass;
        let (Some(weights), Some(ngram)) = (&layer.mechanisms.ngram, &pass.config.mechanisms.ngram) else {
            return;
        };
        let InLayer { state_layer, table, key_value_proj, norms, conv, .. } = &**weights;
        let (hidden, kernels, pool) = (pass.config.hidden_size, pass.kernels, pass.pool);
        let [key_norm, stream_norm, conv_norm] = norms;
        let width = key_norm.weight.len();
        let Self { projected, gated, normed } = self;
        let chosen = choose_rows(pass, weights, width, runs);
        let (rows, row_width) = (chosen.len(), ngram.row_width());
        let embedded = |row: usize, out: &mut [f32]| {
            for (&index, out) in chosen[row].iter().zip(out.chunks_exact_mut(row_width)) {
                table.row(index, out);
            }
        };
        let input = &mut branch.input;
        let dtype = key_value_proj.dtype();
        input.quantize_rows(rows, ngram.ple_embed_dim, dtype, kernels, pool, RowSource::Computed(&embedded));
        matmul(pass, key_value_proj, input, projected);

        let stride = key_value_proj.padded_out();
        gated.resize(rows * width, 0.0);
        by_rows(pool, gated, width, |row, gated| {
            let (keys, values) = projected[row * stride..][..width + hidden].split_at(width);
            let (mut normed_keys, mut normed_streams) = (vec![0.0; width], vec![0.0; width]);
            norm_groups(pass, keys, key_norm, &mut normed_keys);
            norm_groups(pass, &streams[row * width..][..width], stream_norm, &mut normed_streams);
            let pairs = normed_keys.chunks_exact(hidden).zip(normed_streams.chunks_exact(hidden));
            for ((key, stream), out) in pairs.zip(gated.chunks_exact_mut(hidden)) {
                let product = dot(key, stream) / (hidden as f32).sqrt();
                let sign = if product == 0.0 { 0.0 } else { product.signum() };
                let logit = product.abs().max(LEAST_GATE).sqrt() * sign;
                out.copy_from_slice(values);
                kernels.scale(out, 1.0 / (1.0 + (-logit).exp()));
            }
        });
        normed.resize(rows * width, 0.0);
        by_rows(pool, normed, width, |row, out| {
            norm_groups(pass, &gated[row * width..][..width], conv_norm, out);
        });
        let (normed, window) = (Rows { values: normed, stride: width }, ngram.window());
        let sources =
            keep_inputs(Window { state_layer: *state_layer, start: 0 }, runs, normed, width, window);
        let sources: Vec<&Source<'_>> =
            sources.iter().flat_map(|(rows, source)| rows.clone().map(move |_| source)).collect();
        by_rows(pool, streams, width, |row, streams| {
            let mut convolved = vec![0.0; width];
            for (tap, weight) in conv.chunks_exact(width).enumerate() {
                let back = window - tap * ngram.ngram_size;
                if let Some(x) = sources[row].input(normed, row, back, width, window) {
                    kernels.mul_add(&mut convolved, weight, x);
                }
            }
            kernels.activate_in_place(Activation::Silu, &mut convolved);
            kernels.add(streams, &gated[row * width..][..width]);
            kernels.add(streams, &convolved);
        });
    }
}

/// The rows of the table that each token chooses. Keeps the last tokens of each run in its next state.
fn choose_rows(pass: Pass<'_>, weights: &InLayer, width: usize, runs: &mut [Run<'_>]) -> Vec<Vec<usize>> {
    let Some(ngram) = &pass.config.mechanisms.ngram else { return Vec::new() };
    let (first, kept) = (ngram.window() * width, ngram.ngram_size - 1);
    let mut chosen = Vec::new();
    for run in runs {
        let ids = run.ids;
        let (before, next) = run.cache.recurrent_layer(weights.state_layer);
        // The last tokens before the run, the nearest one last, as the bits of floats; where there are fewer, the token
        // that ends a text.
        let before: Vec<u32> = match before {
            Some(state) => state[first..first + kept].iter().map(|x| x.to_bits()).collect(),
            None => vec![ngram.eos_token_id; kept],
        };
        let earlier = |index: usize, back: usize| match index.checked_sub(back) {
            Some(index) => Some(ids[index]),
            None => before.get(kept + index - back).copied(),
        };
        for (place, next) in next[first..first + kept].iter_mut().enumerate() {
            // Counted from the first token of the run, the last ones are len - kept and on.
            *next = f32::from_bits(earlier(ids.len(), kept - place).unwrap_or(ngram.eos_token_id));
        }
        let of_token =
            |(index, &id): (usize, &u32)| ngram.rows(weights.table_index, id, |back| earlier(index, back));
        chosen.extend(ids.iter().enumerate().map(of_token));
    }
    chosen
}

//! The weights of recurrent mixers.

use super::{Loader, by_position};

use crate::config::{LinearRule, Mixer, Recurrent, RecurrentForm, ResidualFactors};
use crate::family::{NormSpec, RecurrentTensors, TensorRows};
use crate::model::weights::{NormWeights, RecurrentWeights};
use ropechat_kernels::kernel::LANES;
use ropechat_platform::error::{Error, Result};

impl<'a> Loader<'a> {
    pub(super) fn recurrent(
        &self,
        index: usize,
        tensors: RecurrentTensors,
        [norm, out_norm]: [Option<&NormSpec>; 2],
    ) -> Result<Box<RecurrentWeights>> {
        let Some(recurrent) = &self.config.recurrent else {
            return Err(Error::Internal("a recurrent layer without its sizes".to_owned()));
        };
        let (channels, positions) = recurrent.window(self.config.hidden_size);
        // Without a convolution a channel is its own input.
        let positions = if tensors.conv.is_empty() { 1 } else { positions + 1 };
        let by_channel = self.rows(&tensors.conv, positions)?;
        let mut conv = match by_channel.is_empty() {
            true => vec![1.0; channels],
            false => by_position(&by_channel, positions),
        };
        for (index, weight) in conv.iter_mut().enumerate() {
            *weight *= input_factor(recurrent, index % channels);
        }
        let conv_bias = match tensors.conv_bias.is_empty() {
            true => vec![0.0; channels],
            false => self.rows(&tensors.conv_bias, 1)?,
        };
        let some = |spec: Option<&NormSpec>| spec.map(|spec| self.norm(spec)).transpose();
        // The norm of the output holds its weight as it is, unlike the norms of the stream.
        let plain_norm = |spec: &NormSpec| {
            Ok::<_, Error>(NormWeights {
                weight: self.rows(&spec.weight, 1)?,
                bias: vec![0.0; spec.width],
                gate: None,
            })
        };
        let mut input_norm = some(norm)?;
        if let Some(norm) = &mut input_norm {
            norm.weight.iter_mut().for_each(|weight| *weight *= self.config.recurrent_factors.input);
        }
        let spec = self.config.layers[index];
        // Parallel to attention, the mixer has its own factors.
        let own = match spec.mixer {
            Mixer::Recurrent => spec.residual_factors[0],
            _ => ResidualFactors::ONE,
        };
        let factors = ResidualFactors { branch: own.branch * self.config.recurrent_factors.output, ..own };
        Ok(Box::new(RecurrentWeights {
            state_layer: self.state_layer(index),
            input_norm,
            in_proj: self.matrix(&tensors.in_proj)?,
            conv,
            conv_bias,
            decay_rate: self.decay_rates(recurrent, index, &tensors.a_log)?,
            dt_bias: self.rows(&tensors.dt_bias, 1)?,
            d: self.rows(&tensors.d, 1)?,
            norm: tensors.norm.as_ref().map(plain_norm).transpose()?,
            inner_proj: tensors.inner_proj.iter().map(|matrix| self.matrix(matrix)).collect::<Result<_>>()?,
            inner_norms: tensors.inner_norms.iter().map(|norm| self.norm(norm)).collect::<Result<_>>()?,
            out_proj: self.matrix(&tensors.out_proj)?,
            out_norm: some(out_norm)?,
            factors,
        }))
    }

    /// The rates at which the states decay, in the order of [`RecurrentWeights::decay_rate`].
    pub(super) fn decay_rates(
        &self,
        recurrent: &Recurrent,
        layer: usize,
        a_log: &[TensorRows],
    ) -> Result<Vec<f32>> {
        let rate = |stored: f32| match self.config.names.recurrent.form {
            RecurrentForm::Hub => -stored.exp(),
            RecurrentForm::Gguf => -stored.abs(), // bailingmoe3 leaves the sign out
        };
        Ok(match recurrent {
            Recurrent::Linear(linear) if linear.rule == (LinearRule::Lightning { stored_block: None }) => {
                lightning_rates(linear.num_value_heads, layer, self.config.layers.len())
            }
            Recurrent::SelectiveScan(scan) => {
                let by_channel = self.rows(a_log, scan.state_size)?;
                let mut rates = vec![0.0; scan.width.next_multiple_of(LANES) * scan.state_size];
                for (channel, values) in by_channel.chunks_exact(scan.state_size).enumerate() {
                    let first = channel / LANES * LANES * scan.state_size + channel % LANES;
                    for (key, &value) in values.iter().enumerate() {
                        rates[first + key * LANES] = rate(value);
                    }
                }
                rates
            }
            Recurrent::RgLru(_) => {
                let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
                self.rows(a_log, 1)?.into_iter().map(|x| -RG_LRU_SHARPNESS * softplus(x)).collect()
            }
            Recurrent::Linear(linear) if linear.stored_block().is_some() => self.rows(a_log, 1)?,
            _ => self.rows(a_log, 1)?.into_iter().map(rate).collect(),
        })
    }
}

/// c in the decay of RG-LRU (De et al. 2024, section 2.4).
const RG_LRU_SHARPNESS: f32 = 8.0;

/// Minus the slopes of lightning attention: those of ALiBi, smaller from layer to layer (transformers,
/// `MiniMaxLightningAttention.get_slope_rate`).
fn lightning_rates(heads: usize, layer: usize, layers: usize) -> Vec<f32> {
    let base = 2f64.powf(-8.0 / heads as f64);
    let factor = 1.0 - layer as f64 / ((layers - 1) as f64 + 1e-5) + 1e-5;
    (1..=heads).map(|head| -(base.powi(head as i32) * factor) as f32).collect()
}

/// Factor of what a channel of the convolution reads; the convolution is linear, so its weights carry it.
fn input_factor(recurrent: &Recurrent, channel: usize) -> f32 {
    let Recurrent::Linear(linear) = recurrent else { return 1.0 };
    let LinearRule::Mamba2 { multipliers: [_, x, b, c, _], .. } = linear.rule else { return 1.0 };
    match channel.checked_sub(linear.values_width()) {
        None => x,
        Some(channel) if channel < linear.keys_width() => b,
        Some(_) => c,
    }
}

//! The weights of MLPs, mixtures of experts and shared blocks.

use super::Loader;

use crate::config::{Activation, Mixer};
use crate::family::{
    AdapterTensors, DenseTensors, Join, MatrixSpec, MoeTensors, RouterMlpTensors, SharedBlockTensors,
    TensorRows,
};
use crate::model::weights::{Adapter, DenseMlp, MoeMlp, RouterMlpWeights, SharedBlockWeights};
use ropechat_kernels::compute::weight::Weight;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::{Error, Result};

impl<'a> Loader<'a> {
    /// The parts of the block without attention, whose projection is of type `dtype`.
    pub(super) fn shared_block(
        &self,
        layer: usize,
        tensors: &SharedBlockTensors,
        dtype: PackedType,
    ) -> Result<SharedBlockWeights> {
        let is_first =
            matches!(self.config.layers[layer].mixer, Mixer::AfterShared { first, .. } if first == layer);
        let mlp = &tensors.mlp;
        let mlp = DenseMlp {
            gate_up_proj: self.shared_matrix(&mlp.gate_up_proj)?,
            down_proj: self.shared_matrix(&mlp.down_proj)?,
            intermediate_size: mlp.down_proj.in_features,
            shape: mlp.shape,
            activation: self.config.activation,
            gate_cutoff: None,
            sub_norm: None,
        };
        Ok(SharedBlockWeights {
            is_first,
            norm: self.norm(&tensors.norm)?,
            attention_adapter: match &tensors.attention_adapter {
                Some(tensors) => Some(self.adapter(tensors, dtype)?),
                None => None,
            },
            mlp_norm: self.norm(&tensors.mlp_norm)?,
            mlp_adapter: self.adapter(&tensors.mlp_adapter, mlp.gate_up_proj.dtype())?,
            mlp,
            linear: self.matrix(&tensors.linear)?,
        })
    }

    /// An adapter in the type of the matrix that it corrects: both read the same input.
    pub(super) fn adapter(&self, tensors: &AdapterTensors, dtype: PackedType) -> Result<Adapter> {
        let like = Loader { dtype: Some(dtype), ..*self };
        let columns = |spec: &MatrixSpec, weight: &Weight| match spec.join {
            Join::Stacked => spec.weights.iter().map(|rows| rows.rows.count()).sum(),
            Join::Interleaved => weight.padded_out(),
        };
        let up = |spec: &MatrixSpec| {
            let weight = like.matrix(spec)?;
            Ok((columns(spec, &weight), weight))
        };
        Ok(Adapter {
            down: like.matrix(&tensors.down)?,
            ups: tensors.ups.iter().map(up).collect::<Result<_>>()?,
            rank: tensors.ups.first().map_or(0, |up| up.in_features),
        })
    }

    pub(super) fn mlp(&self, tensors: &DenseTensors) -> Result<DenseMlp> {
        // The factor of the input reaches the gate and what it is multiplied with; the output's factor makes up for one of
        // both. So each bias has it too.
        let factor = self.config.mlp_input_factor;
        Ok(DenseMlp {
            gate_up_proj: self.matrix_with_bias(&tensors.gate_up_proj, factor)?,
            down_proj: self.matrix_with_bias(&tensors.down_proj, factor)?,
            intermediate_size: tensors.down_proj.in_features,
            shape: tensors.shape,
            activation: match (self.config.activation, &self.rows(&tensors.activation, 1)?[..]) {
                (Activation::Xielu { .. }, &[alpha_p, alpha_n]) => Activation::xielu(alpha_p, alpha_n),
                (activation, _) => activation,
            },
            gate_cutoff: None,
            sub_norm: tensors.sub_norm.as_ref().map(|norm| self.norm(norm)).transpose()?,
        })
    }

    pub(super) fn moe(&self, tensors: &MoeTensors) -> Result<MoeMlp> {
        let (shared, gate) = match &tensors.shared_expert {
            Some((shared, gate)) => (Some(shared), gate.as_ref()),
            None => (None, None),
        };
        // Small differences decide which experts a token takes: the router is not rounded.
        let exact = Loader { dtype: Some(PackedType::F32), ..*self };
        let activation = self.config.moe.and_then(|moe| moe.activation);
        let routed = |expert: &DenseTensors| {
            let mlp = self.mlp(expert)?;
            Ok::<_, Error>(DenseMlp { activation: activation.unwrap_or(mlp.activation), ..mlp })
        };
        let router_mlp = match &tensors.router_mlp {
            None => None,
            Some(RouterMlpTensors { down, state_scale, norm, layers: [first, second] }) => {
                Some(Box::new(RouterMlpWeights {
                    down: exact.matrix(down)?,
                    state_scale: self.rows(state_scale, 1)?,
                    norm: self.norm(norm)?,
                    layers: [exact.matrix(first)?, exact.matrix(second)?],
                }))
            }
        };
        Ok(MoeMlp {
            router: exact.matrix(&tensors.router)?,
            router_mlp,
            e_score_correction_bias: self.rows(&tensors.e_score_correction_bias, 1)?,
            tid2eid: match &tensors.tid2eid[..] {
                [table] => self.experts_of_tokens(table, tensors.experts.len())?,
                _ => Vec::new(),
            },
            router_norm: match &tensors.router_norm {
                None => None,
                Some(spec) => {
                    let mut norm = self.norm(spec)?;
                    let root = (self.config.hidden_size as f32).sqrt();
                    norm.weight.iter_mut().for_each(|weight| *weight /= root);
                    Some(norm)
                }
            },
            per_expert_scale: self.rows(&tensors.per_expert_scale, 1)?,
            latent: match &tensors.latent {
                None => None,
                Some([to, back]) => Some([self.matrix(to)?, self.matrix(back)?]),
            },
            output_bias: self.rows(&tensors.output_bias, 1)?,
            experts: tensors.experts.iter().map(routed).collect::<Result<_>>()?,
            shared_expert: shared.map(|shared| self.mlp(shared)).transpose()?,
            shared_expert_gate: gate.map(|gate| exact.matrix(gate)).transpose()?,
        })
    }

    /// Numbers of experts, each less than `count`.
    pub(super) fn experts_of_tokens(&self, table: &TensorRows, count: usize) -> Result<Vec<u32>> {
        let (name, values) = self.checkpoint.require_integers(&table.name, &table.shape)?;
        let expert = |&value: &i64| u32::try_from(value).ok().filter(|&expert| (expert as usize) < count);
        let experts: Option<Vec<u32>> = values.iter().map(expert).collect();
        experts.ok_or_else(|| Error::Tensor {
            path: self.checkpoint.path().to_owned(),
            name: name.to_owned(),
            what: format!(
                "its entries must be experts from 0 to {} (got {}); download the model again",
                count - 1,
                values.iter().find(|value| expert(value).is_none()).copied().unwrap_or(-1)
            ),
        })
    }
}

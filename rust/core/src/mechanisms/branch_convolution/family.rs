//! The specs of convolutions of a layer's branches.

use super::config::BranchConvolutions;
use super::parts::{InLayer, Outside, ShortConvolution};
use crate::config::LayerMlp;
use crate::family::tensors::{Build, Prefix};
use crate::parts::{Rows, Spec};

impl Build for BranchConvolutions {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let positions = self.kernel_size;
        let (heads, hidden) = (at.heads, at.config.hidden_size);
        let keys = heads.num_key_value_heads * heads.head_dim;
        let values = heads.num_key_value_heads * heads.v_head_dim;
        let of = |parts: &[(&str, usize)], first_channel: usize, scale: Option<&str>| {
            let channels: usize = parts.iter().map(|(_, channels)| channels).sum();
            let mut weight = at.by_position(parts, positions, move |weight| {
                weight[(positions - 1) * channels..].iter_mut().for_each(|weight| *weight += 1.0);
            });
            if let Some(scale) = scale {
                // The factor of the result, behind the weights.
                weight.rows.push((at.vector(scale, Rows::all(1)), 1));
                let prepare = weight.prepare.take();
                weight = weight.prepared(move |mut values| {
                    let scale = values.pop().unwrap_or(1.0);
                    let values = prepare.as_ref().map_or(Vec::new(), |prepare| prepare(values));
                    values.into_iter().map(|weight| weight * scale).collect()
                });
            }
            let state_start = (positions - 1) * first_channel;
            ShortConvolution { weight, state_layer: at.config.state_layer(at.index), state_start, channels }
        };
        let is_sparse = at.layer.mlp == LayerMlp::Moe;
        let scale = if is_sparse { "mlp.gate.global_scale" } else { "mlp.global_scale" };
        let of_kv = [("self_attn.k_sconv.conv1d.weight", keys), ("self_attn.v_sconv.conv1d.weight", values)];
        Some(InLayer {
            kv: of(&of_kv, 0, None),
            attention: of(&[("attn_sconv.conv1d.weight", hidden)], self.kv_channels, None),
            mlp: of(&[("mlp_sconv.conv1d.weight", hidden)], self.kv_channels + hidden, Some(scale)),
        })
    }
}

//! The specs of dynamic mask attention.

use super::config::DynamicMask;
use super::parts::{InLayer, Outside};
use crate::config::{Bias, Tensor, tensor};
use crate::family::tensors::{Build, Prefix};
use crate::parts::{NumberSpec, Rows, Spec, TensorRows};

impl Build for DynamicMask {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        const DT_PROJ: Tensor = tensor!("self_attn.dt_proj");
        let groups = at.heads.num_key_value_heads;
        let width = groups * at.heads.v_head_dim;
        let dt_proj = TensorRows::whole(at.name(DT_PROJ.weight), at.config.names.stored, groups, width);
        Some(InLayer {
            a: at.numbers("self_attn.A", Rows::all(groups)),
            dt_proj: NumberSpec::table(dt_proj, width),
            dt_bias: match at.config.attention_bias {
                Bias::None => NumberSpec::constant(0.0, groups),
                _ => at.numbers(DT_PROJ.bias, Rows::all(groups)),
            },
        })
    }
}

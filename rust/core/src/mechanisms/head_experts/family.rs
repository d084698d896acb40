//! The specs of a mixture of attention heads.

use super::config::HeadExperts;
use super::parts::{InLayer, Outside};
use crate::config::{Bias, Stored, tensor};
use crate::family::tensors::{Build, OwnAttention, Prefix};
use crate::parts::{MatrixSpec, Packing, Rows, Spec, TensorRows};

impl Build for HeadExperts {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    /// The projection of keys and values.
    fn attention(&self, at: &Prefix<'_>) -> Option<OwnAttention> {
        let width = at.heads.qkv_width() - at.heads.q_width();
        let kv_proj = (tensor!("self_attention.kv_proj"), width);
        let projection = at.matrix(&[kv_proj], at.config.hidden_size, Bias::None);
        Some(OwnAttention { projection, qk_norms: None })
    }

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let (hidden, count) = (at.config.hidden_size, self.num_experts);
        let width = at.heads.num_key_value_heads * at.heads.head_dim;
        // The matrices of all experts are in one tensor [expert, out, in].
        let each = |name: &str, out: usize, columns: usize| -> Vec<MatrixSpec> {
            let weight = |number: usize| TensorRows {
                name: at.name(&format!("self_attention.experts.{name}.weight")),
                shape: vec![count, out, columns],
                stored: Stored::OutIn,
                rows: Rows::range(number * out, out),
                transposed: None,
            };
            (0..count).map(|number| MatrixSpec::stacked(vec![weight(number)], Vec::new(), columns)).collect()
        };
        let router = (tensor!("self_attention.experts.router.layer"), count);
        Some(InLayer {
            router: at.matrix(&[router], hidden, Bias::None).packed(Packing::Exact),
            queries: each("input_linear", width, hidden),
            outputs: each("output_linear", hidden, width),
            bias: at.numbers("self_attention.experts.bias", Rows::all(hidden)),
        })
    }
}

//! Which tensors make the weights of a [`Config`], under their hub names.

mod attention;
mod check;
mod layout;
mod mla;
mod moe;
mod prefix;
mod recurrent;
mod rows;
mod spec;

pub use check::{check_tensors, embedding_names, required_tensors, with_base_of};
pub use layout::{layer_tensors, model_tensors};
pub use rows::{Rows, TensorRows};
pub use spec::{
    AttentionTensors, DenseTensors, Join, LayerTensors, MatrixSpec, MlaTensors, MlpTensors, ModelTensors, MoeTensors, NormSpec,
    QkvTensors, RecurrentTensors,
};

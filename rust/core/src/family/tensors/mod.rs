//! Which tensors make the weights of a [`Config`], under their hub names.

mod attention;
mod check;
mod compression;
mod layout;
mod mla;
mod moe;
mod prefix;
mod recurrent;
mod rows;
mod shared_block;
mod spec;
mod unread;

pub use check::{as_in, check_experts, check_tensors, embedding_names, num_parameters, required_tensors};
pub use layout::{layer_tensors, model_tensors, mtp_tensors};
pub use rows::{Rows, TensorRows};
pub use spec::{
    AdapterTensors, AltUpTensors, AttentionTensors, BranchConvolutionTensors, CompressionTensors,
    DenseTensors, DynamicMaskTensors, HeadExpertsTensors, HyperTensors, Join, LayerTensors, MatrixSpec,
    MlaTensors, MlpTensors, ModelTensors, MoeTensors, MtpTensors, NgramTensors, NormSpec, PerLayerTensors,
    QkConvolutionTensors, QkvTensors, RecurrentTensors, RouterMlpTensors, SharedBlockTensors,
};

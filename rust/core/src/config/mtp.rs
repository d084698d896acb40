//! Multi-token prediction (MTP): a layer behind the others that predicts the token after the next one. Only drafts come
//! from it.
//!
//! Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2, <https://arxiv.org/abs/2412.19437>; Qwen 3 Next
//! has one such layer, too.

use super::structure::LayerSpec;
use super::tensor_names::{Tensor, tensor};

/// The layer and its tensors. It reads fc([norm(embedding of the next token), norm(hidden state)]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mtp {
    /// What the layer is.
    pub layer: LayerSpec,
    /// Where its tensors are.
    pub names: MtpNames,
}

/// Where the tensors of multi-token prediction are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MtpNames {
    /// The prefix before `layers.0`, and before the other tensors; None: the layer comes behind the model's own ones, and
    /// the other tensors are in it.
    pub base: Option<&'static str>,
    /// From both inputs to the layer's.
    pub fc: Tensor,
    /// Norm of the next token's embedding.
    pub embedding_norm: Tensor,
    /// Norm of the model's hidden state.
    pub hidden_norm: Tensor,
    /// Norm after the layer.
    pub norm: Tensor,
}

impl MtpNames {
    /// Qwen's names.
    pub const OWN_BASE: Self = Self {
        base: Some("mtp."),
        fc: tensor!("fc"),
        embedding_norm: tensor!("pre_fc_norm_embedding"),
        hidden_norm: tensor!("pre_fc_norm_hidden"),
        norm: tensor!("norm"),
    };

    /// DeepSeek's names.
    pub const IN_LAYER: Self = Self {
        base: None,
        fc: tensor!("eh_proj"),
        embedding_norm: tensor!("enorm"),
        hidden_norm: tensor!("hnorm"),
        norm: tensor!("shared_head.norm"),
    };

    /// llama.cpp's names.
    pub const GGUF: Self = Self {
        base: None,
        fc: tensor!("nextn.eh_proj"),
        embedding_norm: tensor!("nextn.enorm"),
        hidden_norm: tensor!("nextn.hnorm"),
        norm: tensor!("nextn.shared_head_norm"),
    };
}

//! The facts of AltUp and LAuReL.

use crate::config::{Facts, Tensor, tensor};

/// Several residual streams, of which a layer computes one (AltUp), and a low-rank branch beside attention (LAuReL;
/// gemma3n).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct AltUp {
    pub altup_num_inputs: usize,
    /// The stream that a layer computes.
    pub altup_active_idx: usize,
    /// Whether what the second embedding's gate reads has a learned scale.
    pub altup_correct_scale: bool,
    pub laurel_rank: usize,
    pub names: AltUpNames,
}

/// Where the tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AltUpNames {
    /// From the first stream to the others and back; `{}` is the number, without it one tensor holds all: [number, out, in].
    pub projections: [&'static str; 2],
    /// In a layer: norm of the router's input.
    pub router_norm: Tensor,
    /// In a layer: the router.
    pub modality_router: &'static str,
    /// In a layer: from the router to the streams' predictions.
    pub prediction_coefs: &'static str,
    /// In a layer: from the router to their corrections.
    pub correction_coefs: &'static str,
    /// In a layer: factors of the corrected stream.
    pub correct_output_scale: &'static str,
    /// In a layer: to the low rank.
    pub laurel_left: Tensor,
    /// In a layer: back.
    pub laurel_right: Tensor,
    /// In a layer: norm of that branch.
    pub laurel_norm: Tensor,
}

impl AltUpNames {
    /// Those of the hub.
    pub const HUB: Self = Self {
        projections: ["altup_projections.{}.weight", "altup_unembed_projections.{}.weight"],
        router_norm: tensor!("altup.router_norm"),
        modality_router: "altup.modality_router.weight",
        prediction_coefs: "altup.prediction_coefs.weight",
        correction_coefs: "altup.correction_coefs.weight",
        correct_output_scale: "altup.correct_output_scale",
        laurel_left: tensor!("laurel.linear_left"),
        laurel_right: tensor!("laurel.linear_right"),
        laurel_norm: tensor!("laurel.post_laurel_norm"),
    };

    /// llama.cpp's.
    const GGUF: Self = Self {
        projections: ["altup_proj.weight", "altup_unembd_proj.weight"],
        router_norm: tensor!("altup_router_norm"),
        modality_router: "altup_router.weight",
        prediction_coefs: "altup_predict_coef.weight",
        correction_coefs: "altup_correct_coef.weight",
        correct_output_scale: "altup_correct_scale.weight",
        laurel_left: tensor!("laurel_l"),
        laurel_right: tensor!("laurel_r"),
        laurel_norm: tensor!("laurel_post_norm"),
    };
}

impl Facts for AltUp {
    fn use_gguf_names(&mut self) {
        self.names = AltUpNames::GGUF;
    }
}

//! What the entries of `archs/` hold, and what they share.

use super::source::Source;
use super::translated::Translated;
use crate::config::HeadRows;
use ropechat_platform::error::Result;

/// What the files of one architecture mean, and what they do not state.
pub(super) struct Arch {
    /// `general.architecture`.
    pub name: &'static str,
    /// The family that computes it.
    pub model_type: &'static str,
    /// The family that computes it when the file has experts.
    pub mixture: Option<&'static str>,
    /// Other families whose files have this architecture.
    pub others: &'static [&'static str],
    /// Key of config.json for the norms' epsilon.
    pub epsilon: &'static str,
    /// The order of a head's rows in q and k.
    pub head_rows: HeadRows,
    /// How much of a head is rotated.
    pub rotary: Rotary,
    /// Keys of this architecture only: (of config.json, of the file).
    pub keys: &'static [(&'static str, &'static str)],
    /// Keys that it shares with others.
    pub shared_keys: &'static [(&'static str, &'static str)],
    /// Facts that files leave out: (key of config.json, its value in JSON).
    pub facts: &'static [(&'static str, &'static str)],
    /// Flags of config.json that are true when a layer has this tensor.
    pub flags: &'static [(&'static str, &'static str)],
    /// The recurrent mixer that some layers have.
    pub mixer: Option<RecurrentMixer>,
    /// Keys that say what is computed here, and nothing else: (of the file, its value in JSON).
    pub fixed: &'static [(&'static str, &'static str)],
    /// Adds the keys of config.json that no key of the file has as they are.
    pub own: fn(&Source<'_>, &mut Translated) -> Result<()>,
    /// The number of layers whose model scales scores by the width per head instead of the head's (gemma's 27B).
    pub layers_of_quotient_scale: Option<u64>,
}

/// Recurrent mixers, as GGUF files store them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RecurrentMixer {
    /// Short convolutions (lfm2).
    ShortConv,
    /// Gated DeltaNet.
    GatedDelta,
    /// Kimi Delta Attention.
    KimiDelta,
    /// Mamba.
    Mamba,
    /// Mamba-2.
    Mamba2,
}

/// How much of a head is rotated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rotary {
    /// Nothing: positions are learned.
    None,
    /// All of it.
    Whole,
    /// `rope.dimension_count` dimensions, which config.json gives as a share of the head.
    Share,
    /// `rope.dimension_count` dimensions that all heads share, beside the latent of MLA.
    Mla,
}

pub(super) const RMS: &str = "rms_norm_eps";
pub(super) const LAYER: &str = "layer_norm_eps";
pub(super) const WINDOW: (&str, &str) = ("sliding_window", "attention.sliding_window");
pub(super) const EXPERTS: (&str, &str) = ("num_experts", "expert_count");
pub(super) const EXPERTS_USED: (&str, &str) = ("num_experts_per_tok", "expert_used_count");
pub(super) const EXPERT_WIDTH: (&str, &str) = ("moe_intermediate_size", "expert_feed_forward_length");
/// Experts are chosen by their softmax, or by their sigmoid.
pub(super) const SOFTMAX: (&str, &str) = ("expert_gating_func", "1");
pub(super) const SIGMOID: (&str, &str) = ("expert_gating_func", "2");

/// Granite's.
pub(super) const MULTIPLIERS: &[(&str, &str)] = &[
    ("attention_multiplier", "attention.scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
];

/// Without rotation it is a model of another architecture.
pub(super) const ROTATED: &[(&str, &str)] = &[("rope.scaling.finetuned", "true")];

/// Llama: no keys or facts of its own.
pub(super) const LLAMA: Arch = Arch {
    name: "llama",
    model_type: "llama",
    mixture: Some("mixtral"),
    others: &[],
    epsilon: RMS,
    head_rows: HeadRows::Paired,
    rotary: Rotary::Whole,
    keys: &[],
    shared_keys: &[],
    facts: &[],
    flags: &[],
    mixer: None,
    fixed: &[],
    own: |_, _| Ok(()),
    layers_of_quotient_scale: None,
};

/// Architectures whose q and k rows the converter does not reorder.
pub(super) const IN_ORDER: Arch = Arch { mixture: None, head_rows: HeadRows::InOrder, ..LLAMA };
/// Architectures whose q and k rows the converter reorders.
pub(super) const PAIRED: Arch = Arch { mixture: None, ..LLAMA };

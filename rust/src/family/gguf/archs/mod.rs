//! The GGUF architectures: a few facts for each; everything else is in its family.

mod attention;
mod hybrid;
mod mixtures;

use super::source::Source;
use super::translated::Translated;
use crate::checkpoint::escape_for_terminal;
use crate::config::HeadRows;
use crate::error::Result;

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

const RMS: &str = "rms_norm_eps";
const LAYER: &str = "layer_norm_eps";
const WINDOW: (&str, &str) = ("sliding_window", "attention.sliding_window");
const EXPERTS: (&str, &str) = ("num_experts", "expert_count");
const EXPERTS_USED: (&str, &str) = ("num_experts_per_tok", "expert_used_count");
const EXPERT_WIDTH: (&str, &str) = ("moe_intermediate_size", "expert_feed_forward_length");
/// Experts are chosen by their softmax, or by their sigmoid.
const SOFTMAX: (&str, &str) = ("expert_gating_func", "1");
const SIGMOID: (&str, &str) = ("expert_gating_func", "2");

/// Granite's.
const MULTIPLIERS: &[(&str, &str)] = &[
    ("attention_multiplier", "attention.scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
];

/// Without rotation it is a model of another architecture.
const ROTATED: &[(&str, &str)] = &[("rope.scaling.finetuned", "true")];

/// Llama: no keys or facts of its own.
const LLAMA: Arch = Arch {
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
const IN_ORDER: Arch = Arch { mixture: None, head_rows: HeadRows::InOrder, ..LLAMA };
/// Architectures whose q and k rows the converter reorders.
const PAIRED: Arch = Arch { mixture: None, ..LLAMA };

/// The architectures, and the model types whose files have each.
pub(super) fn names() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let types =
        |arch: &Arch| [arch.model_type].into_iter().chain(arch.mixture).chain(arch.others.iter().copied());
    all().map(move |arch| (arch.name, types(arch).collect()))
}

/// All architectures.
fn all() -> impl Iterator<Item = &'static Arch> {
    attention::ARCHS.iter().chain(mixtures::ARCHS).chain(hybrid::ARCHS)
}

/// The architecture that the file names. Errors: `Unsupported` for one that is not known here.
pub(super) fn find(source: &Source<'_>) -> Result<&'static Arch> {
    all().find(|arch| arch.name == source.arch).ok_or_else(|| {
        const NAMED: usize = 8;
        let mut rest = all().map(|arch| arch.name);
        let named: Vec<&str> = rest.by_ref().take(NAMED).collect();
        let what = format!(
            "\"{}\"; supported: {} and {} more, which `ropechat models families` lists",
            escape_for_terminal(&source.arch),
            named.join(", "),
            rest.count()
        );
        source.unsupported("general.architecture", what)
    })
}
